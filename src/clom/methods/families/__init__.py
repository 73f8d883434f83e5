"""What several systems share."""
