from dataclasses import dataclass
from typing import Optional

import torch


@dataclass
class MixedPrecision:
    """
    Which dtypes an instance computes in.

    .. note:: This API is experimental and subject to change.
    """

    param_dtype: Optional[torch.dtype] = None
    keep_low_precision_grads: bool = False
