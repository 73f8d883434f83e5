"""HTML reports of one or more runs."""
