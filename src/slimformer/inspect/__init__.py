"""What a model is made of and what its weights, activations and attention look like, before anything is cut."""
