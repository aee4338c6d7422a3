"""What ``MixedPrecision.cast_forward_inputs=None`` stands for in each FSDP instance."""

from typing import Any, Iterable, Optional

import torch
from torch.distributed.fsdp._input_dtype import _get_low_precision_dtype
from torch.nn.modules.batchnorm import _BatchNorm


def _get_forward_dtype(state: Any) -> Optional[torch.dtype]:
    """
    Return the dtype that the parameters managed by ``state`` have in forward,
    or ``None`` if it manages none. Only valid after lazy initialization, until
    which the user may still change the dtype of the parameters.
    """
    if not state._handles:
        return None
    low_precision_dtype = _get_low_precision_dtype(state, state._handles)
    if low_precision_dtype is not None:
        return low_precision_dtype
    dtypes = {handle.flat_param.dtype for handle in state._handles}
    # Without a common dtype there is none to cast to
    return dtypes.pop() if len(dtypes) == 1 else None


def _init_default_input_dtypes(root_state: Any, states: Iterable[Any]) -> None:
    """
    Decide once for ``states``, which are those of the tree under ``root_state``
    and itself, after their lazy initialization: If they differ in forward dtype,
    then each one casts to its own by default, else none does but the root.
    """
    forward_dtypes = {root_state: _get_forward_dtype(root_state)}
    for state in states:
        # Batch norm takes low precision with its parameters in full precision
        if isinstance(getattr(state, "module", None), _BatchNorm):
            forward_dtypes[state] = None
        else:
            forward_dtypes[state] = _get_forward_dtype(state)
    differ = len(set(forward_dtypes.values()) - {None}) > 1
    for state, forward_dtype in forward_dtypes.items():
        state._default_input_dtype = forward_dtype if differ else None


def _get_input_dtype(state: Any, handles: Iterable[Any]) -> Optional[torch.dtype]:
    """
    Return the dtype to cast the inputs of the coming forward to, or ``None`` if
    they stay as they are.
    """
    mixed_precision = state.mixed_precision
    if state._is_root and not mixed_precision.cast_root_forward_inputs:
        return None
    if state._is_root or mixed_precision.cast_forward_inputs:
        low_precision_dtype = _get_low_precision_dtype(state, handles)
        if low_precision_dtype is not None:
            return low_precision_dtype
    if mixed_precision.cast_forward_inputs is None:
        return state._default_input_dtype
    return None
