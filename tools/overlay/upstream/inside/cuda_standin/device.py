"""``torch.cuda``: devices, streams, events, memory figures, random numbers."""

import contextlib
import itertools
import threading
import time
import types
import weakref

import torch

from cuda_standin.marks import ON_CUDA

_count = 0
_local = threading.local()
_serial = itertools.count(1)
_generators = ()
_peaks = {}
_made = weakref.WeakSet()
_CYCLES_PER_SECOND = 1e9


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
            "CUDA error: invalid device ordinal (the stand-in has %d devices)" % _count
        )
    return device


def generator(device_index):
    """A device's own generator of random numbers."""
    return _generators[device_index]


class Stream:
    """Work in order. All of it is done at once; what passes here is a virtual time."""

    def __init__(self, device=None, priority=0, **kwargs):
        self.device_index = index(device)
        self.priority = priority
        self.cuda_stream = self.stream_id = kwargs.get("stream_id", next(_serial))
        self.device_type = kwargs.get("device_type", 1)
        self.seconds = 0.0
        _made.add(self)

    @property
    def device(self):
        return torch.device("cuda", self.device_index)

    @property
    def _as_parameter_(self):
        return self.cuda_stream

    def now(self):
        """Seconds: not before the work was given, and not before what it waits for."""
        self.seconds = max(self.seconds, _host_seconds())
        return self.seconds

    def wait_stream(self, stream):
        self.seconds = max(self.now(), stream.now())

    def wait_event(self, event):
        event.wait(self)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self):
        return self.seconds <= _host_seconds()

    def synchronize(self):
        _host_waits_for(self.seconds)

    def __enter__(self):
        self._entered = stream(self)
        self._entered.__enter__()
        return self

    def __exit__(self, *error):
        return self._entered.__exit__(*error)

    def __eq__(self, other):
        return isinstance(other, Stream) and (other.device_index, other.cuda_stream) == (
            self.device_index,
            self.cuda_stream,
        )

    def __hash__(self):
        return hash(self.cuda_stream)


class ExternalStream(Stream):
    """A stream of another library."""

    def __init__(self, stream_ptr, device=None, **kwargs):
        super().__init__(device, stream_id=stream_ptr)


class Event:
    """A point in a stream."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, **kwargs):
        self.enable_timing = enable_timing
        self.seconds = None
        self.cuda_event = next(_serial)

    @property
    def device(self):
        return torch.device("cuda", current())

    def record(self, stream=None):
        self.seconds = (stream or current_stream()).now()

    def wait(self, stream=None):
        if self.seconds is not None:
            stream = stream or current_stream()
            stream.seconds = max(stream.now(), self.seconds)

    def query(self):
        return self.seconds is None or self.seconds <= _host_seconds()

    def synchronize(self):
        _host_waits_for(self.seconds or 0.0)

    def elapsed_time(self, end):
        """Milliseconds to a later event."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self.seconds is None or end.seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.seconds - self.seconds) * 1000


def _host_seconds():
    """The host's clock, put forward by what it has waited for without spending the time."""
    return time.perf_counter() + getattr(_local, "waited", 0.0)


def _host_waits_for(seconds):
    late = seconds - _host_seconds()
    if late > 0:
        _local.waited = getattr(_local, "waited", 0.0) + late


def sleep(cycles):
    """Keep the current stream busy, in virtual time."""
    stream = current_stream()
    stream.seconds = stream.now() + cycles / _CYCLES_PER_SECOND


def _streams():
    if not hasattr(_local, "streams"):
        _local.streams, _local.defaults = {}, {}
    return _local


def default_stream(device=None):
    """A device's default stream."""
    where = index(device)
    defaults = _streams().defaults
    if where not in defaults:
        defaults[where] = Stream(where, stream_id=0)
    return defaults[where]


def current_stream(device=None):
    """The stream that work on a device goes to now."""
    where = index(device)
    return _streams().streams.get(where) or default_stream(where)


def set_stream(stream):
    """Send work to this stream from now on."""
    if stream is not None:
        _local.device = stream.device_index
        _streams().streams[stream.device_index] = stream


class StreamContext:
    """Sends work to a stream within a block; None changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is not None:
            self._device, self._stream = current(), current_stream(self.stream.device_index)
            set_stream(self.stream)

    def __exit__(self, *error):
        if self.stream is not None:
            set_stream(self._stream)
            _local.device = self._device


def stream(stream):
    """As ``torch.cuda.stream``."""
    return StreamContext(stream)


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
        _peaks[where] = max(_peaks[where], total)
    return total


def note_allocation():
    """Follow the peak, once somebody has asked for it."""
    for where in _peaks:
        _allocated(where)


def _reset_peak(device=None):
    where = index(device)
    _peaks[where] = 0
    _allocated(where)


def _peak(device=None):
    where = index(device)
    if where not in _peaks:
        _reset_peak(where)
    _allocated(where)
    return _peaks[where]


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
    global _count, _generators
    _count = devices
    cuda = torch.cuda
    _generators = tuple(_Generator(torch.device("cuda", where)) for where in range(devices))
    _seed(torch.initial_seed(), range(devices))
    nothing = lambda *args, **kwargs: None  # noqa: E731
    replaced = {
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": stream,
        "set_stream": set_stream,
        "current_stream": current_stream,
        "default_stream": default_stream,
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
        "synchronize": _synchronize,
        "_sleep": sleep,
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
        getattr(cuda, name) for name in ("streams", "memory", "random", "graphs")
        if hasattr(cuda, name)
    ]
    for module in (cuda, *modules):
        for name, value in replaced.items():
            if module is cuda or (hasattr(module, name) and name != "device"):
                setattr(module, name, _named(value, name) if module is cuda else getattr(cuda, name))
    torch.Generator = _Generator
    below = {
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_getDeviceCount": count,
        "_cuda_getDevice": current,
        "_cuda_setDevice": set_current,
        "_cuda_exchangeDevice": _exchange_device,
        "_cuda_maybeExchangeDevice": _exchange_device,
        "_cuda_getCurrentRawStream": lambda device: current_stream(device).cuda_stream,
    }
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


def _synchronize(device=None):
    where = index(device)
    for made in list(_made):
        if made.device_index == where:
            made.synchronize()


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
