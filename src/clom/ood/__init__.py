"""Does an image belong to a task at all? Scores computed from what a task's model put out."""
