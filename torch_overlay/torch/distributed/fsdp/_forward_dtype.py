"""Which dtype each FSDP instance casts the inputs of its forward to."""

from typing import no_type_check, Optional

import torch
from torch.distributed.fsdp._common_utils import _FSDPState
from torch.distributed.utils import _p_assert


@no_type_check
def _get_forward_dtype(state: _FSDPState) -> Optional[torch.dtype]:
    """
    Return the dtype that the parameters managed by ``state`` have in forward,
    or ``None`` if it manages none. Only valid after lazy initialization, until
    which the user may still change the dtype of the parameters.
    """
    handles = state._fully_sharded_module_to_handle.values()
    dtypes = {handle._fwd_bwd_param_dtype for handle in handles}
    _p_assert(
        len(dtypes) <= 1,
        "Expects the parameters of one FSDP instance to have one forward dtype "
        f"but got {sorted(map(str, dtypes))}",
    )
    return next(iter(dtypes), None)


@no_type_check
def _takes_any_dtype(state: _FSDPState) -> bool:
    """
    Return whether ``state`` wraps a module in full precision that takes inputs
    of any dtype: one of a class in ``MixedPrecision._module_classes_to_ignore``,
    such as batch norm, wrapped by hand or by an auto wrap policy. The latter
    also puts hooks on it that cast its inputs up and its outputs back down,
    and they can only do the latter if no one else has done the former.
    """
    if not state._handle:
        return False
    module = state._handle._fully_sharded_module
    mixed_precision = state.mixed_precision
    return hasattr(module, "_wrap_overrides") or (
        mixed_precision.param_dtype is None
        and isinstance(module, tuple(mixed_precision._module_classes_to_ignore))
    )


@no_type_check
def _init_input_dtypes(root_state: _FSDPState) -> None:
    """
    Decide once for the tree under ``root_state``, at the end of its lazy
    initialization, which dtype ``MixedPrecision.cast_forward_inputs=None``
    stands for in each FSDP instance: if they differ in forward dtype, then each
    one's own, else no cast. ``cast_root_forward_inputs`` rules the root.
    """
    forward_dtypes = {}
    for state in root_state._all_fsdp_states:
        if _takes_any_dtype(state):
            forward_dtypes[state] = None
        else:
            forward_dtypes[state] = _get_forward_dtype(state)
    differ = len(set(forward_dtypes.values()) - {None}) > 1
    for state, forward_dtype in forward_dtypes.items():
        may_cast = (
            state is not root_state or state.mixed_precision.cast_root_forward_inputs
        )
        state._default_input_dtype = forward_dtype if differ and may_cast else None


@no_type_check
def _get_input_dtype(state: _FSDPState) -> Optional[torch.dtype]:
    """
    Return the dtype to cast the inputs of the coming forward to, or ``None`` if
    they stay as they are, as they do when the forward runs in full precision.
    """
    handle = state._handle
    if not handle or handle._force_full_precision:
        return None
    mixed_precision = state.mixed_precision
    if mixed_precision.cast_forward_inputs is None:
        in_training = handle._fully_sharded_module.training
        if state._use_full_prec_in_eval and not in_training:
            return None
        return state._default_input_dtype
    return mixed_precision.param_dtype if mixed_precision.cast_forward_inputs else None
