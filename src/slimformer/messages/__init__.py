"""How arguments are named, checked and shown in messages."""
