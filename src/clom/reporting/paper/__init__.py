"""The paper's numbers and tables, ours beside them."""
