"""Photo models: learning, predicting and forgetting tasks."""
