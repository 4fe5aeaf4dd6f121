"""What can be done to a model, one step in one file."""
