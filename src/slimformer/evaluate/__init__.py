"""One metric, one file: from a model and data to numbers, with what an error bar needs."""
