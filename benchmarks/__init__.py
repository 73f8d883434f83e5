"""How fast things are, against the limits that were set for them: `make bench`."""
