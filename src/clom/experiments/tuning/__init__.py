"""Searches for recipes: the same number of trials of the same size for every method, judged by held-out images."""
