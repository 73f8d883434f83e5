"""Builds the distribution and tries it as a user would: `make dist`."""
