"""How one task is learned."""
