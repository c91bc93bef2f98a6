"""Deterministic simulation: sessions, forks and readers on one seeded scheduler, over a storage that misbehaves."""
