"""Predictions, batched, from the model that is active."""
