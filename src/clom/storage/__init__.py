"""Models, checkpoints and what proves them unchanged, as files."""
