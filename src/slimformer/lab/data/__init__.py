"""Data of the lab: images and texts in memory, with a part to train on and a part to validate on."""
