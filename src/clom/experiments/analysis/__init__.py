"""Analyses of finished runs."""
