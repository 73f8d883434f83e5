"""Training on one task: losses, optimisers, schedules, protection of old tasks, heads, calibration."""
