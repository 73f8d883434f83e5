"""How one task is learned: losses, optimisers, schedules, protections of old tasks, heads, calibration."""
