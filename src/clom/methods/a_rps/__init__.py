"""A-RPS."""
