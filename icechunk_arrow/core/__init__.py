"""Pure values and decisions: no storage, no clock, no randomness."""
