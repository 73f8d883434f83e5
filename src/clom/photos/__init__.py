"""Teaching, asking and pruning a model of photos."""
