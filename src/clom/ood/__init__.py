"""Does an image belong to a task at all? Scores computed from what a task's model put out.

Functions of tensors that import nothing else of the package, so that methods and evaluation can both use them.
"""
