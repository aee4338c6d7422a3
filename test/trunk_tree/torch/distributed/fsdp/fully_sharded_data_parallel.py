import functools
from typing import Any

import torch
import torch.nn as nn

from ._runtime_utils import (
    _post_forward,
    _pre_forward,
    _pre_forward_unshard,
    _root_pre_forward,
)
from .api import MixedPrecision
from .flat_param import FlatParamHandle, HandleConfig


class FullyShardedDataParallel(nn.Module):
    """A wrapper that is its own state."""

    def __init__(self, module: nn.Module, mixed_precision=None):
        super().__init__()
        nested = [m for m in module.modules() if isinstance(m, FullyShardedDataParallel)]
        others = {param for wrapper in nested for param in wrapper.parameters()}
        params = [param for param in module.parameters() if param not in others]
        self.mixed_precision = mixed_precision or MixedPrecision()
        self.compute_device = torch.device("cpu")
        config = HandleConfig(self.mixed_precision.param_dtype)
        self._handles = [FlatParamHandle(params, module, config)] if params else []
        self._is_root = None
        self._fsdp_wrapped_module = module

    @property
    def module(self) -> nn.Module:
        return self._fsdp_wrapped_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _root_pre_forward(self, self, args, kwargs)
        unused = None
        unshard_fn = functools.partial(_pre_forward_unshard, self, self._handles)
        _pre_forward(self, self._handles, unshard_fn, self._fsdp_wrapped_module, unused)
        output = self._fsdp_wrapped_module(*args, **kwargs)
        return _post_forward(self, self._handles, None, self, unused, output)
