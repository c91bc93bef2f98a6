"""Frames into one commit: rows brought in order, work of tasks, what the driver commits."""
