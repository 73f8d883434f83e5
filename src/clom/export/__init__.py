"""Models as graphs for other programs."""
