import torch

from .api import MixedPrecision


class _FSDPState:
    """What ``fully_shard`` keeps of a module; a wrapper is its own state."""

    def __init__(self):
        self._is_root = None
        self._handles = []
        self._pre_forward_handles = []
        self._root_pre_forward_handles = []
        self.mixed_precision = MixedPrecision()
        self.compute_device = torch.device("cpu")


def _all_handles(state):
    return state._handles
