"""From files to tasks: readers, the registry of data sets, task streams and augmented views."""
