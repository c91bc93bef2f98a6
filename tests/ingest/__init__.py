"""Bringing in what people have."""
