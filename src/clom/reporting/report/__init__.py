"""A run, or several, as one HTML page."""
