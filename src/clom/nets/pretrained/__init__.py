"""Pretrained feature extractors."""
