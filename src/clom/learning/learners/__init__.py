"""Learners: how the network is trained on one task."""
