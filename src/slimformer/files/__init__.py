"""Files of our own, whatever is in them."""
