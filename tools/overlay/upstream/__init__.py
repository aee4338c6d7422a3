"""PyTorch's own distributed tests, run before and after the series."""
