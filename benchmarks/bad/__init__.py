"""Bad inputs for every reader of the program: made by hand where a weakness was suspected, by chance elsewhere."""
