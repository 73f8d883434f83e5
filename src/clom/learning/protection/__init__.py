"""What keeps old tasks intact while a new one is learned."""
