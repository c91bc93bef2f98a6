"""Bytes and values: one module per file kind, and no knowledge of where files live."""
