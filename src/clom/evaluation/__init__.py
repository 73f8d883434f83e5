"""Evaluation: scores are computed once, and every metric is derived from them."""
