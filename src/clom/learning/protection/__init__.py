"""Protection of old tasks while a new one is learned."""
