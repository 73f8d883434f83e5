"""Does an image belong to a task at all? OOD scores of what a task's model computes, and predictors of the task.

Functions of tensors that import no other package of CLOM, so that methods and evaluation can both use them.
"""
