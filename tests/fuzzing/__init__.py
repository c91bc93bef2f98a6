"""Damaged files that are sealed rightly: made from a seed, looked at in every way, judged by the rules."""
