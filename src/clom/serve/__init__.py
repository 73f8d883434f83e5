"""A page to ask and to teach a model, and the API behind it."""
