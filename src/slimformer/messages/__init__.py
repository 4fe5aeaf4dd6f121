"""How arguments are named, checked and shown to whoever reads a message."""
