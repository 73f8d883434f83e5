"""Batched predictions of the active model."""
