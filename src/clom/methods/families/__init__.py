"""Base classes shared by several methods."""
