"""Measures Onceflow against the ceiling of the same server, in one run: `make bench`."""
