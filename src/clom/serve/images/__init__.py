"""Uploaded images, decoded in processes of their own."""
