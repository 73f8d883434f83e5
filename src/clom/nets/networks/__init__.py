"""The networks, one file each, and the registry that knows them by name."""
