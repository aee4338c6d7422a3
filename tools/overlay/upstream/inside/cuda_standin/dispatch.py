"""What happens to every operation: devices checked and carried on, missing kernels filled in."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_standin import beneath, kernels
from cuda_standin import device as cuda
from cuda_standin.marks import ON_CUDA, PINNED, index_of, storage_of
from cuda_standin.tensors import as_device, cuda_device, is_wrapper

_CPU = torch.device("cpu")
# These take tensors of several devices on CUDA, too.
_MIXING = {
    "aten::copy_",
    "aten::_to_copy",
    "aten::_foreach_copy_",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_local_scalar_dense",
    "aten::set_",
    "aten::set",
    "aten::resize_as_",
    "aten::is_set_to",
    "aten::_has_compatible_shallow_copy_type",
    "aten::record_stream",
    "aten::_amp_foreach_non_finite_check_and_unscale_",
}

# These take indices that are on the CPU.
_INDEXING = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
}

# Torch keeps the modes of its compiler and of fake tensors below all others; 1.13 has none.
_modes_below = getattr(torch._C, "_len_torch_dispatch_stack", int)
_can_redispatch = hasattr(torch._ops.OpOverload, "redispatch")
_CPU_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class _Traits:
    """What is to be known of an operation, looked up once."""

    def __init__(self, func):
        schema = func._schema
        self.name = schema.name
        self.may_mix = self.name in _MIXING or not self.name.startswith("aten::")
        self.indexes = self.name in _INDEXING
        self.has_generator = any(a.name == "generator" for a in schema.arguments)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.draws_from_default = is_random and not self.has_generator
        self.fresh = [returned.alias_info is None for returned in schema.returns]
        self.any_fresh = any(self.fresh)
        first = schema.arguments[0].alias_info if schema.arguments else None
        self.writes_first = first is not None and first.is_write
        path = ".".join(filter(None, (self.name, schema.overload_name))).replace("::", "/")
        self.is_python = _can_redispatch and f"{path}/CPU" in torch.library._impls
        self.kernel = kernels.OWN.get(self.name)


_traits = {}


def _traits_of(func):
    traits = _traits.get(func)
    if traits is None:
        traits = _traits[func] = _Traits(func)
    return traits


class StandIn(TorchDispatchMode):
    """Sees every operation of its thread."""

    @classmethod
    def _should_skip_dynamo(cls):
        """Later torch wraps the handler for its compiler, which costs each operation much."""
        return False

    @classmethod
    def is_infra_mode(cls):
        """A part of the machine, not a user's: compilers need not step aside for it."""
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _modes_below():
            return func(*args, **kwargs)  # for tensors without storage, which know their device
        for kind in types:
            if is_wrapper(kind):
                return NotImplemented  # A wrapper's own handler, whose operations come here again.
        traits = _traits_of(func)
        tensors = kernels.tensors_in(args, kwargs)
        where = None
        target = kwargs.get("device")
        if target is not None:
            target = as_device(target)
        if target is None or (tensors and target.type == "cpu" and not cuda.is_explicit()):
            where = _common_device(traits, tensors)
            if where is not None and beneath.is_cause():
                beneath.work_goes_on(where)
        elif target.type == "cuda":
            where = target.index
            kwargs = {**kwargs, "device": _CPU}
        elif not tensors and beneath.is_cause():
            where = beneath.device()
        pinned = kwargs.get("pin_memory")
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}
        if where is not None and traits.has_generator and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": cuda.generator(where)}
        if traits.is_python:
            with self:  # for the kernel's own operations
                result = func.redispatch(_CPU_KEY, *args, **kwargs)
        elif traits.kernel is not None:
            result = traits.kernel(func, args, kwargs, where)
        elif where is None:
            result = func(*args, **kwargs)
        elif traits.draws_from_default:
            with cuda.drawing_from(where):
                result = kernels.run(func, args, kwargs, tensors)
        else:
            result = kernels.run(func, args, kwargs, tensors)
        if traits.any_fresh and (where is not None or pinned):
            _mark(result, traits, where, pinned)
        return result


def _common_device(traits, tensors):
    """The index of the CUDA device that an operation's tensors are on, or None for the CPU.

    A CPU tensor without dimensions may join any device, unless it is written to.
    """
    where, decided = None, False
    for number, tensor in enumerate(tensors):
        index = index_of(tensor)
        if index is None and not tensor.dim() and (number or not traits.writes_first):
            continue
        if not decided:
            where, decided = index, True
        elif index != where and not (traits.may_mix or (traits.indexes and index is None)):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{_name(where)} and {_name(index)}! (when checking arguments of {traits.name})"
            )
    return where


def _name(index):
    return "cpu" if index is None else str(cuda_device(index))


def _mark(result, traits, where, pinned):
    """Mark the storages that an operation has made."""
    results = (result,) if len(traits.fresh) == 1 else result
    for one, is_fresh in zip(results, traits.fresh):
        if not is_fresh:
            continue
        for tensor in one if isinstance(one, (list, tuple)) else (one,):
            storage = storage_of(tensor) if isinstance(tensor, torch.Tensor) else None
            if storage is None:
                continue
            if pinned:
                PINNED.set(storage, True)
            if where is not None and ON_CUDA.get(storage) is None:
                ON_CUDA.set(storage, where)
                cuda.note_allocation(where, storage.nbytes())
