"""``torch.cuda``: devices, memory figures, random numbers."""

import contextlib
import sys
import threading
import types

import torch

from cuda_standin.marks import ON_CUDA

_count = 0
_local = threading.local()
_generators = ()
_peaks = {}


def count():
    """How many devices there are."""
    return _count


def current():
    """The index of the thread's current device."""
    return getattr(_local, "device", 0)


def set_current(device):
    """Make a device the thread's current one."""
    _local.device = index(device)


def index(device):
    """The index of what names a CUDA device: None, an integer, a string or a torch.device."""
    if device is None:
        return current()
    if isinstance(device, bool) or not isinstance(device, int):
        device = torch.device(device)
        if device.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        device = current() if device.index is None else device.index
    if device < 0:
        return current()
    if device >= _count:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal (the stand-in has {_count} devices)"
        )
    return device


def generator(device_index):
    """A device's own generator of random numbers."""
    return _generators[device_index]


@contextlib.contextmanager
def drawing_from(device_index):
    """Let what draws from the CPU's default generator draw from a device's in this block."""
    default, own = torch.default_generator, generator(device_index)
    before = default.get_state()
    default.set_state(own.get_state())
    try:
        yield
    finally:
        own.set_state(default.get_state())
        default.set_state(before)


class _OfTorch(type):
    def __instancecheck__(cls, one):
        return isinstance(one, _own_device)

    def __subclasscheck__(cls, other):
        return issubclass(other, _own_device)

    def __eq__(cls, other):
        return other is cls or other is _own_device

    def __hash__(cls):
        return hash(_own_device)

    def __getattr__(cls, name):
        return getattr(_own_device, name)


_own_device = torch.device


class _Device(metaclass=_OfTorch):
    """``torch.device`` that knows what a number alone means: the accelerator's device."""

    def __new__(cls, *args, **kwargs):
        if len(args) == 1 and type(args[0]) is int and not kwargs:
            return _own_device("cuda", args[0])
        return _own_device(*args, **kwargs)


_Device.__name__ = _Device.__qualname__ = "device"
_Device.__module__ = "torch"


class use_device:
    """As ``torch.cuda.device``."""

    def __init__(self, device):
        self.idx = -1 if device is None else index(device)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = current()
        if self.idx >= 0:
            _local.device = self.idx

    def __exit__(self, *error):
        _local.device = self.prev_idx
        return False


def _allocated(device=None):
    where = index(device)
    total = sum(size for size, on in ON_CUDA.sizes() if on == where)
    if where in _peaks:
        _peaks[where].follow(total)
    return total


class _Peak:
    """The most that was allocated at once.

    What is freed is not seen. So it adds up what is allocated, and only when that sum would be a
    new peak has all that lives counted.
    """

    def __init__(self):
        self.highest = self.at_most = 0

    def follow(self, total):
        self.at_most = total
        self.highest = max(self.highest, total)


def note_allocation(where, size):
    """Follow the peak, once somebody has asked for it."""
    peak = _peaks.get(where)
    if peak is not None:
        peak.at_most += size
        if peak.at_most > peak.highest:
            _allocated(where)


def _reset_peak(device=None):
    _peaks[index(device)] = _Peak()
    _allocated(device)


def _peak(device=None):
    where = index(device)
    if where not in _peaks:
        _reset_peak(where)
    return _peaks[where].highest


def _memory_stats(device=None):
    now, peak = _allocated(device), _peak(device)
    figures = {"num_alloc_retries": 0, "num_ooms": 0}
    for what in ("allocated", "reserved", "active", "requested"):
        figures[f"{what}_bytes.all.current"] = now
        figures[f"{what}_bytes.all.peak"] = peak
        figures[f"{what}_bytes.all.allocated"] = now
        figures[f"{what}_bytes.all.freed"] = 0
    return figures


def _properties(device=None):
    where = index(device)
    return types.SimpleNamespace(
        name="CUDA stand-in",
        major=8,
        minor=0,
        total_memory=16 << 30,
        multi_processor_count=1,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        regs_per_multiprocessor=65536,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid=where,
        L2_cache_size=1 << 20,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=167936,
    )


class _Generator(torch._C.Generator):
    """A generator for a device, which the CPU's kernels can use."""

    def __new__(cls, device="cpu"):
        device = torch.device(device)
        if device.type != "cuda":
            return torch._C.Generator(device=device)
        made = super().__new__(cls)
        made._index = index(device)
        return made

    @property
    def device(self):
        return torch.device("cuda", self._index)


def _seed(value, devices):
    for where in devices:
        _generators[where].manual_seed(int(value))


def _new_seeds(devices):
    for where in devices:
        _generators[where].seed()


def _state_index(device):
    return index(None if device == "cuda" else device)


def _get_rng_state(device="cuda"):
    return _generators[_state_index(device)].get_state()


def _set_rng_state(new_state, device="cuda"):
    _generators[_state_index(device)].set_state(new_state.cpu())


def install(devices):
    """Replace what ``torch.cuda`` gives to Python."""
    from cuda_standin import streams

    global _count, _generators
    _count = devices
    cuda = torch.cuda
    _generators = tuple(_Generator(torch.device("cuda", where)) for where in range(devices))
    _seed(torch.initial_seed(), range(devices))
    nothing = lambda *args, **kwargs: None  # noqa: E731
    replaced = {
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
        "Event": streams.Event,
        "StreamContext": streams.StreamContext,
        "stream": streams.stream,
        "set_stream": streams.set_stream,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "device": use_device,
        "_DeviceGuard": use_device,
        "_device": use_device,
        "device_of": lambda obj: use_device(obj.get_device() if obj.is_cuda else None),
        "is_available": lambda: True,
        "_is_compiled": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: True,
        "init": nothing,
        "_lazy_init": nothing,
        "_lazy_call": lambda call, **kwargs: call(),
        "device_count": count,
        "_device_count_nvml": count,
        "current_device": current,
        "set_device": set_current,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "get_device_name": lambda device=None: _properties(device).name,
        "get_device_capability": lambda device=None: (8, 0),
        "get_device_properties": _properties,
        "_get_device_properties": _properties,
        "can_device_access_peer": lambda device, peer: index(device) != index(peer),
        "synchronize": streams.synchronize,
        "_sleep": streams.sleep,
        "ipc_collect": nothing,
        "empty_cache": nothing,
        "memory_allocated": _allocated,
        "max_memory_allocated": _peak,
        "memory_reserved": _allocated,
        "max_memory_reserved": _peak,
        "memory_cached": _allocated,
        "max_memory_cached": _peak,
        "reset_peak_memory_stats": _reset_peak,
        "reset_max_memory_allocated": _reset_peak,
        "reset_max_memory_cached": _reset_peak,
        "reset_accumulated_memory_stats": nothing,
        "memory_stats": _memory_stats,
        "memory_stats_as_nested_dict": _memory_stats,
        "mem_get_info": lambda device=None: (_properties(device).total_memory // 2,) * 2,
        "default_generators": _generators,
        "manual_seed": lambda seed: _seed(seed, [current()]),
        "manual_seed_all": lambda seed: _seed(seed, range(_count)),
        "seed": lambda: _new_seeds([current()]),
        "seed_all": lambda: _new_seeds(range(_count)),
        "initial_seed": lambda: _generators[current()].initial_seed(),
        "get_rng_state": _get_rng_state,
        "get_rng_state_all": lambda: [g.get_state() for g in _generators],
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": _set_rng_state_all,
        "is_current_stream_capturing": lambda: False,
    }
    modules = [
        getattr(cuda, name)
        for name in ("streams", "memory", "random", "graphs")
        if hasattr(cuda, name)
    ]
    for module in (cuda, *modules):
        for name, value in replaced.items():
            if module is cuda or (hasattr(module, name) and name != "device"):
                setattr(
                    module, name, _named(value, name) if module is cuda else getattr(cuda, name)
                )
    torch.Generator = _Generator
    below = {
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_getDeviceCount": count,
        "_cuda_getDevice": current,
        "_cuda_setDevice": set_current,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _exchange_device,
        "_cuda_getCurrentRawStream": lambda device: streams.current_stream(device).cuda_stream,
        "_cuda_setStream": streams.set_stream_by_id,
        "_cuda_synchronize": streams.synchronize,
    }
    if hasattr(torch._C, "_get_accelerator"):
        torch.device = _Device
        below.update(
            {
                "_get_accelerator": lambda check=None: torch.device("cuda"),
                "_accelerator_getAccelerator": lambda: torch.device("cuda"),
                "_accelerator_deviceCount": count,
                "_accelerator_getDeviceIndex": current,
                "_accelerator_setDeviceIndex": set_current,
                "_accelerator_exchangeDevice": _exchange_device,
                "_accelerator_maybeExchangeDevice": _exchange_device,
                "_accelerator_getStream": streams.current_stream,
                "_accelerator_setStream": streams.set_stream,
                "_accelerator_synchronizeDevice": streams.synchronize,
            }
        )
    fake_tensors = sys.modules.get("torch._subclasses.fake_tensor")
    if hasattr(fake_tensors, "init_gpu_context"):
        fake_tensors.init_gpu_context = nothing
    for name, value in below.items():
        setattr(torch._C, name, _named(value, name))
    torch.version.cuda = torch.version.cuda or "11.8"


def _named(value, name):
    """A function of its own: torch's compiler has a rule for each, and not two for one."""
    if not isinstance(value, types.FunctionType):
        return value
    return types.FunctionType(
        value.__code__, value.__globals__, name, value.__defaults__, value.__closure__
    )


def _exchange_device(device):
    before = current()
    if device >= 0:
        _local.device = device
    return before


def _set_rng_state_all(new_states):
    for where, state in enumerate(new_states):
        _set_rng_state(state, where)


@contextlib.contextmanager
def device_is_explicit():
    """Within this block, an operation's ``device`` is what upstream's code asked for.

    Else a CPU there may be what torch's own C++ read off a tensor that only looks like the CPU's.
    """
    before, _local.explicit = is_explicit(), True
    try:
        yield
    finally:
        _local.explicit = before


def is_explicit():
    """Whether the thread is in a block of ``device_is_explicit``."""
    return getattr(_local, "explicit", False)
