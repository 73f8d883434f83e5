"""The file people keep."""
