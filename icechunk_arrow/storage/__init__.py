"""Bytes and places: the only part that talks to disks and object stores."""
