"""Fewer bits and more zeros, on the moments of what every linear layer reads."""
