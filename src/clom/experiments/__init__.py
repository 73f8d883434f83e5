"""Experiments: configurations, runs, grids and the ledger of results."""
