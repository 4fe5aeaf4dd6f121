"""Checkpoints: written whole or not at all, proved by reloading in a fresh process, opened like any other."""
