"""Figures, of one run and across runs."""
