"""Compressed models for other runtimes: ONNX, torch.export and GGUF."""
