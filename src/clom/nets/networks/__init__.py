"""The networks, one file each, and their registry."""
