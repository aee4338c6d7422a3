"""The low-precision dtype that an FSDP instance computes in."""

from typing import Any, Iterable, Optional

import torch


def _get_low_precision_dtype(
    state: Any, handles: Iterable[Any]
) -> Optional[torch.dtype]:
    """
    Return the one low-precision dtype of ``handles``, or ``None`` if they stay
    in full precision. A root without parameters still casts for what is in it.
    """
    dtypes = {_get_param_dtype(handle._config) for handle in handles}
    assert len(dtypes) <= 1, (
        "Expects the handles of one FSDP instance to have one low-precision "
        f"dtype but got {sorted(map(str, dtypes))}"
    )
    if dtypes:
        return dtypes.pop()
    return state.mixed_precision.param_dtype if state._is_root else None


def _get_param_dtype(config: Any) -> Optional[torch.dtype]:
    # Its name differs from version to version
    if hasattr(config, "low_prec_param_dtype"):
        return config.low_prec_param_dtype
    return config.param_dtype
