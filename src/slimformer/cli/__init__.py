"""The shell: one command in one file."""
