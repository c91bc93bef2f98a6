"""The script that makes the conformance kit, `schemas/conformance`, and what reads it with this package.

`python -m tests.conformance.kit` adds the cases that are not there yet, and touches no other.
"""
