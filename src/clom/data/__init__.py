"""From files to tasks: readers, the catalogue of named sets, streams of tasks and augmented views."""
