"""Uploaded images, decoded in separate processes."""
