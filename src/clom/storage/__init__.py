"""Model files, checkpoints, score files, and verification that tasks are unchanged."""
