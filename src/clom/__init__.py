"""Continual learning by out-of-distribution detection and task masks."""
