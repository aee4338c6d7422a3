# ruff: noqa: I001, UP006, UP035
import functools
from typing import Any, Callable, Iterable, List, no_type_check, Optional, Tuple

import torch
import torch.nn as nn
from torch.distributed.fsdp._common_utils import _all_handles, _FSDPState
from torch.distributed.fsdp._utils import _apply_to_tensors, p_assert
from torch.distributed.fsdp.flat_param import FlatParamHandle
from torch.distributed.utils import _to_kwargs


@no_type_check
def _lazy_init(
    state: _FSDPState,
    root_module: nn.Module,
) -> _FSDPState:
    """Makes ``state`` the root of the wrappers in ``root_module``; for ``fully_shard`` of itself."""
    if state._is_root is not None:
        return state
    state._is_root = True
    if state is root_module:
        for fsdp_module in root_module.modules():
            if isinstance(fsdp_module, type(state)) and fsdp_module is not state:
                fsdp_module._is_root = False
    return state


@no_type_check
def _pre_forward(
    state: _FSDPState,
    handles: List[FlatParamHandle],
    unshard_fn: Callable,
    module: nn.Module,
    input: Any,
):
    """
    What comes before a forward: parameters are made whole.

    Args:
        handles (List[FlatParamHandle]): Those of the forward.
        unshard_fn (Callable): Makes the parameters whole, if given.
        module (nn.Module): Whose forward it is.
        input (Any): Unused; expected by the hook signature.
    """
    if unshard_fn is not None:
        unshard_fn()
    _register_post_backward_hooks(state, handles)


@no_type_check
def _pre_forward_unshard(
    state: _FSDPState,
    handles: List[FlatParamHandle],
) -> None:
    for handle in handles:
        handle.unshard()


@no_type_check
def _post_forward(
    state: _FSDPState,
    handles: List[FlatParamHandle],
    reshard_fn: Callable,
    module: nn.Module,
    input: Any,
    output: Any,
) -> Any:
    """
    What comes after a forward.

    Args:
        input (Any): Unused; expected by the hook signature.
        output (Any): What forward returned.
    """
    for handle in handles:
        handle.reshard()
    return output


@no_type_check
def _root_pre_forward(
    state: _FSDPState,
    module: nn.Module,
    args,
    kwargs,
):
    """Readies the inputs of the outermost forward; any other's come back as they are."""
    _lazy_init(state, module)
    p_assert(state._is_root is not None, "no root")
    if not state._is_root:
        return args, kwargs
    _clear_grads_if_needed(_all_handles(state))
    input_dtype: Optional[torch.dtype] = state.mixed_precision.param_dtype
    args, kwargs = _prepare_forward_inputs(state.compute_device, input_dtype, *args, **kwargs)
    return args, kwargs


def _prepare_forward_inputs(
    device: torch.device,
    input_dtype: Optional[torch.dtype],
    *args: Any,
    **kwargs: Any,
) -> Tuple[Any, Any]:
    """
    Readies inputs by moving them to ``device`` and casting them to
    ``input_dtype`` if it is not ``None``.
    """
    args_tuple, kwargs_tuple = _to_kwargs(args, kwargs, device.index, False)
    args = args_tuple[0]
    kwargs = kwargs_tuple[0]
    if input_dtype is not None:
        args, kwargs = _cast_fp_inputs_to_dtype(input_dtype, *args, **kwargs)
    return args, kwargs


def _cast_fp_inputs_to_dtype(
    dtype: torch.dtype,
    *args: Any,
    **kwargs: Any,
) -> Tuple[Any, Any]:
    """Gives the inputs back with the floating-point ones in ``dtype``."""

    def cast_fn(x: torch.Tensor) -> torch.Tensor:
        if not torch.is_floating_point(x):
            return x
        y = x.to(dtype)
        if x.is_leaf:
            y.requires_grad = x.requires_grad
        return y

    with torch.no_grad():
        return (_apply_to_tensors(cast_fn, args), _apply_to_tensors(cast_fn, kwargs))


@no_type_check
def _register_pre_forward_hooks(
    state: _FSDPState,
    modules: Iterable[nn.Module],
) -> None:
    for module in modules:
        unshard_fn = functools.partial(_pre_forward_unshard, state, state._handles)
        hook = functools.partial(_pre_forward, state, state._handles, unshard_fn)
        state._pre_forward_handles.append(module.register_forward_pre_hook(hook, prepend=True))


@no_type_check
def _register_post_forward_hooks(
    state: _FSDPState,
    modules: Iterable[nn.Module],
) -> None:
    for module in modules:
        hook = functools.partial(_post_forward, state, state._handles, None)
        module.register_forward_hook(hook)


@no_type_check
def _register_root_pre_forward_hook(
    state: _FSDPState,
    module: nn.Module,
) -> None:
    hook = functools.partial(_root_pre_forward, state)
    state._root_pre_forward_handles.append(
        module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
    )


def _register_post_backward_hooks(
    state: _FSDPState,
    handles: List[FlatParamHandle],
) -> None:
    """Nothing is reduced here."""


def _clear_grads_if_needed(handles: List[FlatParamHandle]) -> None:
    """No gradients are kept here."""
