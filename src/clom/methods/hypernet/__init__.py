"""HyperNet."""
