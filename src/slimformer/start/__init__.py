"""What keeps the start light: nothing is imported before somebody needs it."""
