"""What can be computed from a finished run."""
