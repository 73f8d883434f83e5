"""Files of a run folder that others read or check: its signature and its progress."""
