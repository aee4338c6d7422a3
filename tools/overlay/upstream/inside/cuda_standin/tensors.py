"""What Python sees of where a tensor is, and how it is moved."""

import contextlib
import functools

import torch
from torch.utils._python_dispatch import _pop_mode_temporarily

from cuda_standin import beneath
from cuda_standin import device as cuda
from cuda_standin.marks import ON_CUDA, PINNED, index_of, storage_of

_base = torch._C._TensorBase
_cpu = torch.device("cpu")
_own_device = _base.device.__get__
_own_to = torch.Tensor.to
_devices = {}


def cuda_device(index):
    """The ``torch.device`` of an index, made once."""
    if index not in _devices:
        _devices[index] = torch.device("cuda", index)
    return _devices[index]


def device_of(tensor):
    """The device that a tensor is on, as upstream's code is to see it."""
    index = index_of(tensor)
    if index is not None:
        return cuda_device(index)
    own = _own_device(tensor)
    if own.type == "cpu" and is_wrapper(type(tensor)):
        inner = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
        return device_of(getattr(tensor, inner[0])) if inner else own
    return own


def _make_wrapper(kind, *args, device=None, **kwargs):
    """A wrapper looks like the CPU's to C++, too: autograd asks the driver for a stream, else."""
    if hasattr(kind, "__tensor_flatten__") and device is not None:
        device = _cpu if torch.device(device).type == "cuda" else device
    return _own_make_wrapper(kind, *args, device=device, **kwargs)


def is_wrapper(kind):
    """Whether tensors of a class handle operations themselves, on tensors that they hold."""
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def as_device(device):
    """A ``torch.device`` with its index, from what torch takes for one."""
    if isinstance(device, int):
        return cuda_device(cuda.index(device))
    device = torch.device(device)
    return cuda_device(cuda.index(device)) if device.type == "cuda" else device


def _is_ours(tensor):
    """Whether it lies in ordinary memory itself, as wrappers (DTensor, fake tensors) do not."""
    if is_wrapper(type(tensor)) or _own_device(tensor).type != "cpu":
        return False
    return storage_of(tensor) is not None


def _is_movable(tensor):
    """Whether it lies in ordinary memory, or what it wraps does."""
    return hasattr(tensor, "__tensor_flatten__") or _is_ours(tensor)


class _Move(torch.autograd.Function):
    """A copy to another device, whose gradient goes back to where it came from."""

    @staticmethod
    def forward(ctx, tensor, options):
        ctx.came_from = tensor.device, tensor.dtype
        return _copied(tensor, options)

    @staticmethod
    def backward(ctx, gradient):
        device, dtype = ctx.came_from
        beneath.work_goes_on(device.index)
        return gradient.to(device=device, dtype=dtype), None


def _copied(tensor, options):
    with cuda.device_is_explicit():
        return _own_to(tensor, copy=True, **options)


def _to(self, *args, **kwargs):
    options = _options(args, dict(kwargs))
    device, copy = options.pop("device"), options.pop("copy")
    now = device_of(self)
    target = now if device is None else as_device(device)
    if target == now:
        return _own_to(self, copy=copy, **options)
    if target.type not in ("cuda", "cpu") or not _is_movable(self):
        return _own_to(self, device=target, copy=copy, **options)
    options.setdefault("dtype", self.dtype)
    options["device"] = target
    if torch.is_grad_enabled() and self.requires_grad and options["dtype"].is_floating_point:
        return _Move.apply(self, options)
    return _copied(self, options)


def _options(args, options):
    """The arguments of ``Tensor.to`` by name; ``device`` and ``copy`` always."""
    args = list(args)
    other = options.pop("other", None)
    if args and isinstance(args[0], torch.Tensor):
        other = args.pop(0)
    if other is not None:
        options["device"], options["dtype"] = other.device, other.dtype
    elif args and (args[0] is None or isinstance(args[0], (str, int, torch.device))):
        options["device"] = args.pop(0)
        if args and (args[0] is None or isinstance(args[0], torch.dtype)):
            options["dtype"] = args.pop(0)
    elif args and isinstance(args[0], torch.dtype):
        options["dtype"] = args.pop(0)
    options.update(zip(("non_blocking", "copy", "memory_format"), args))
    options.setdefault("device", None)
    options["copy"] = bool(options.get("copy"))
    return {
        name: value
        for name, value in options.items()
        if name in ("device", "copy") or value is not None
    }


def _cuda(self, device=None, non_blocking=False, memory_format=torch.preserve_format):
    return self.to(
        cuda_device(cuda.index(device)), non_blocking=non_blocking, memory_format=memory_format
    )


def _cpu_copy(self, memory_format=torch.preserve_format):
    return self.to(_cpu, memory_format=memory_format)


def _pin_memory(self, device=None):
    if device_of(self).type != "cpu":
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    if _is_pinned(self):
        return self
    pinned = self.clone()
    PINNED.set(storage_of(pinned), True)
    return pinned


def _is_pinned(self, device=None):
    storage = storage_of(self)
    return storage is not None and bool(PINNED.get(storage))


def _numpy(self, *args, **kwargs):
    if device_of(self).type == "cuda":
        raise TypeError(
            f"can't convert {device_of(self)} device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )
    return _own_numpy(self, *args, **kwargs)


def _array(self, *args, **kwargs):
    if device_of(self).type == "cuda":
        _numpy(self)  # refuses
    return _own_array(self, *args, **kwargs)


def _type(self, dtype=None, non_blocking=False, **kwargs):
    if dtype is not None:
        if isinstance(dtype, torch.dtype):
            return self.to(dtype, non_blocking=non_blocking)
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
        if name.startswith("torch.cuda."):
            plain = getattr(torch, name.rsplit(".", 1)[1])
            return self.cuda().to(plain.dtype)
        return _own_type(self.cpu(), dtype, non_blocking, **kwargs)
    name = _own_type(self)
    if device_of(self).type == "cuda" and _own_device(self).type == "cpu":
        return name.replace("torch.", "torch.cuda.", 1)
    return name


def _get_device(self):
    device = device_of(self)
    return device.index if device.type == "cuda" else _own_get_device(self)


def _share_memory(self):
    return self if device_of(self).type == "cuda" else _own_share_memory(self)


_own_numpy = torch.Tensor.numpy
_own_array = torch.Tensor.__array__
_own_type = torch.Tensor.type
_own_get_device = torch.Tensor.get_device
_own_share_memory = torch.Tensor.share_memory_

# Below the Python API a gradient of another device is not seen.
_own_grad = torch.Tensor.__dict__.get("grad") or _base.grad


def _set_grad(self, gradient):
    if gradient is not None and isinstance(gradient, torch.Tensor):
        here, there = device_of(self), device_of(gradient)
        if here != there and {here.type, there.type} == {"cpu", "cuda"}:
            raise RuntimeError("assigned grad has data located on a different device")
    _own_grad.__set__(self, gradient)


def _storage_device(self):
    index = ON_CUDA.get(self)
    own = _own_storage_device(self)
    return own if index is None else cuda_device(index)


def _new_storage(cls, *args, device=None, **kwargs):
    if device is None:
        return _own_new_storage(cls, *args, **kwargs)
    device = as_device(device)
    if device.type != "cuda":
        return _own_new_storage(cls, *args, device=device, **kwargs)
    storage = _own_new_storage(cls, *args, **kwargs)
    ON_CUDA.set(storage, device.index)
    cuda.note_allocation(device.index, storage.nbytes())
    return storage


def _moved_storage(self, device):
    moved = type(self)(self.nbytes(), device=device)
    moved.copy_(self)
    return moved


def _storage_cuda(self, device=None, non_blocking=False, **kwargs):
    device = cuda_device(cuda.index(device))
    return self if self.device == device else _moved_storage(self, device)


def _storage_cpu(self):
    return self if self.device.type == "cpu" else _moved_storage(self, _cpu)


def _pin_storage(self, device=None):
    if not PINNED.get(self):
        self = self.clone()
        PINNED.set(self, True)
    return self


def _resize_storage(self, size):
    result = _own_resize_storage(self, size)
    where = ON_CUDA.get(self)
    if where is not None:
        cuda.note_allocation(where, size)
    return result


def _context_device():
    """The device of the ``with torch.device(...)`` block around, which 1.13 does not know."""
    modes = getattr(torch.overrides, "_get_current_function_mode_stack", list)()
    return next((mode.device for mode in modes if type(mode).__name__ == "DeviceContext"), None)


def _like(own):
    """Below the Python API, no device given and the CPU given look the same."""

    @functools.wraps(own)
    def make(self, *args, device=None, **kwargs):
        if device is None and not own.__name__.startswith("new_"):
            device = _context_device()
        if device is not None:
            device = as_device(device)
        if not isinstance(self, torch.Tensor) or not _is_ours(self):
            if device is not None:
                kwargs["device"] = device
            return own(self, *args, **kwargs)
        device = device or device_of(self)
        with cuda.device_is_explicit():
            return own(self, *args, device=device, **kwargs)

    return make


def _unwatched(own):
    """Makers of Python objects, which in old torch cannot take a tensor that a mode handled."""

    @functools.wraps(own)
    def make(*args, **kwargs):
        is_watched = torch._C._len_torch_dispatch_stack() > 0
        with _pop_mode_temporarily() if is_watched else contextlib.nullcontext():
            return own(*args, **kwargs)

    return make


_LIKE = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like"
_NEW = "new_empty new_zeros new_ones new_full new_empty_strided"


def _from_data(own):
    """Makers of tensors from data look for the driver before any operation is seen."""

    @functools.wraps(own)
    def make(*args, device=None, requires_grad=False, **kwargs):
        if device is None:
            # ``new_tensor`` goes to where its tensor is.
            is_new = own.__name__ == "new_tensor"
            device = device_of(args[0]) if is_new else _context_device()
        device = None if device is None else as_device(device)
        if (
            device is not None
            and own.__name__.startswith("as")
            and isinstance(args[0], torch.Tensor)
        ):
            args = (args[0].to(device), *args[1:])
        if device is None or device.type != "cuda":
            options = {} if device is None else {"device": device}
            if requires_grad:
                options["requires_grad"] = True
            return own(*args, **options, **kwargs)
        made = own(*args, device=_cpu, **kwargs).to(device)
        return made.requires_grad_() if requires_grad else made

    return make


def _on_number(own):
    """Later torch asks the driver which kind of device a number alone names."""

    @functools.wraps(own)
    def make(*args, device=None, **kwargs):
        if device is not None:
            kwargs["device"] = as_device(device)
        return own(*args, **kwargs)

    return make


def _parse_to(*args, **kwargs):
    if args and isinstance(args[0], int):
        args = (as_device(args[0]), *args[1:])
    return _own_parse_to(*args, **kwargs)


_own_make_wrapper = torch.Tensor._make_wrapper_subclass
_own_parse_to = torch._C._nn._parse_to
_Storage = torch.UntypedStorage if hasattr(torch, "UntypedStorage") else torch._UntypedStorage
_own_new_storage = _Storage.__new__
_own_resize_storage = _Storage.resize_
_own_storage_device = (
    torch._C.StorageBase.device.__get__
    if hasattr(torch._C, "StorageBase")
    else _Storage.device.__get__
)


class _Getter(property):
    """A property that torch's compiler takes for one of its own."""

    __objclass__ = _base


def _replace(name, wrap):
    """Put a wrapper in the place of a function of torch, for TorchScript, too."""
    own = getattr(torch, name)
    wrapper = wrap(own)
    operation = torch.jit._builtins._find_builtin(own)
    if operation is not None:
        torch.jit._builtins._register_builtin(wrapper, operation)
    setattr(torch, name, wrapper)


def install():
    """Replace the attributes and methods of tensors and storages that tell of a device."""
    tensor = torch.Tensor
    properties = {
        "device": _Getter(device_of),
        "is_cuda": _Getter(lambda self: device_of(self).type == "cuda"),
        "is_cpu": _Getter(lambda self: device_of(self).type == "cpu"),
        "grad": _Getter(_own_grad.__get__, _set_grad, _own_grad.__delete__),
    }
    for name, getter in properties.items():
        getter.__name__ = name
        setattr(tensor, name, getter)
    tensor.get_device = _get_device
    tensor.to, tensor.cuda, tensor.cpu = _to, _cuda, _cpu_copy
    tensor.type = _type
    tensor.pin_memory, tensor.is_pinned = _pin_memory, _is_pinned
    tensor.numpy = _numpy
    tensor.__array__ = _array
    tensor.share_memory_ = _share_memory
    tensor.new_tensor = _from_data(tensor.new_tensor)
    if hasattr(torch._C, "_get_accelerator"):
        from torch.utils._device import _device_constructors

        for maker in _device_constructors():
            if getattr(torch, maker.__name__, None) is maker:
                _replace(maker.__name__, _on_number)
        torch._C._nn._parse_to = _parse_to
    for name in ("tensor", "as_tensor", "asarray"):
        _replace(name, _from_data)
    for name in _LIKE.split():
        _replace(name, _like)
    for name in _NEW.split():
        if hasattr(tensor, name):
            setattr(tensor, name, _like(getattr(tensor, name)))
    if hasattr(torch._C, "_set_torch_dispatch_mode"):
        tensor.__new__ = staticmethod(_unwatched(_base.__new__))
        tensor.as_subclass = _unwatched(tensor.as_subclass)
    tensor._make_wrapper_subclass = staticmethod(_make_wrapper)
    tensor.record_stream = lambda self, stream: None
    _Storage.device = property(_storage_device)
    _Storage.is_cuda = property(lambda self: self.device.type == "cuda")
    _Storage.get_device = lambda self: self.device.index if self.device.type == "cuda" else -1
    _Storage.__new__ = staticmethod(_new_storage)
    _Storage.cuda, _Storage.cpu = _storage_cuda, _storage_cpu
    _Storage.pin_memory = _pin_storage
    _Storage.is_pinned = lambda self, device="cuda": bool(PINNED.get(self))
    _Storage.resize_ = _resize_storage
