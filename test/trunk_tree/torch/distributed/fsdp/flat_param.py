from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn


@dataclass
class HandleConfig:
    low_prec_param_dtype: Optional[torch.dtype]


class FlatParamHandle:
    """Parameters that are in low precision between unshard and reshard; nothing is sharded here."""

    def __init__(self, params, module, config):
        self._config = config
        self._places = [
            (owner, name, param)
            for owner in module.modules()
            for name, param in owner.named_parameters(recurse=False)
            if any(param is mine for mine in params)
        ]
        self.flat_param = params[0]

    def unshard(self):
        for owner, name, param in self._places:
            dtype = self._config.low_prec_param_dtype or param.dtype
            owner._parameters[name] = nn.Parameter(param.detach().to(dtype))

    def reshard(self):
        for owner, name, param in self._places:
            owner._parameters[name] = param
