"""Learning new classes while the server answers."""
