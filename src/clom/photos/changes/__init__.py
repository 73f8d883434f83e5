"""Changes to what a model knows: names, merged classes, and more photos."""
