"""Where things are, as URIs."""

from __future__ import annotations

__all__ = ["root_uri"]


def root_uri(url: str) -> str:
    """Give the place of a repository as a URI: paths of a local disk as they are, behind ``file://``."""
    return url.rstrip("/") if "://" in url else "file://" + url.rstrip("/")
