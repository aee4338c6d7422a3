"""torch-overlay: carries a series of patches on PyTorch, addressed by symbol instead of by line."""
