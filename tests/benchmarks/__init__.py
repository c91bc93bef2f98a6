"""What this package costs, beside its peers and beside a floor; run as ``python -m tests.benchmarks``."""
