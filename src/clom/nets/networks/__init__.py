"""The networks, one file each."""
