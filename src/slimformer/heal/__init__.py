"""Win back what cutting lost: a short distillation from the dense model, on text without labels."""
