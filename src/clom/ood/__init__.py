"""OOD scores of a task's outputs, task predictors, and rejection of unknown images.

Functions of tensors that import no method, so that methods and evaluation can both use them.
"""
