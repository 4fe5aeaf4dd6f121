"""Modules that stock architectures lack."""
