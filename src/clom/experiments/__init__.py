"""Experiments: what is learned, with which budget, what came out of it."""
