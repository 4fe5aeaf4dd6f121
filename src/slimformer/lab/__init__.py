"""Training small models from scratch, from a YAML file: grids of variants, seeds, tables with mean and deviation."""
