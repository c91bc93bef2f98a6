"""The command ``icechunk-arrow``: repositories from a shell. ``entry`` is where it begins."""
