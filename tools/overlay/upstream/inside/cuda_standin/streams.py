"""Streams and events: all work is done at once, and what passes in them is a virtual time.

So a kernel that only waits costs nothing, and what upstream's code does after another, beside
another, or too early shows in the times that its events give.
"""

import itertools
import threading
import time

import torch

from cuda_standin import device as cuda

_POOL = 32  # CUDA's streams come round again after so many.
_CYCLES_PER_SECOND = 1e9

_numbers = itertools.count()
_local = threading.local()
_times = {}
"""For each stream, by device and id, when its work is done, in seconds of the host's clock."""


class Stream:
    """Names a stream of a device; those that name the same one are equal."""

    def __init__(self, device=None, priority=0, **kwargs):
        self.device_index = kwargs.get("device_index")
        if self.device_index is None:
            self.device_index = cuda.index(device)
        self.priority = priority
        self.stream_id = kwargs.get("stream_id")
        if self.stream_id is None:
            self.stream_id = 1 + next(_numbers) % _POOL
        self.device_type = 1
        self._key = (self.device_index, self.stream_id)

    @property
    def cuda_stream(self):
        return self.stream_id

    @property
    def device(self):
        return torch.device("cuda", self.device_index)

    @property
    def _as_parameter_(self):
        return self.stream_id

    def ready(self):
        """When work that is given to it now begins: not before what was given to it earlier."""
        return max(_times.get(self._key, 0.0), _host_seconds())

    def delay(self, until):
        """Let nothing that is given to it from now on begin before a time."""
        _times[self._key] = max(self.ready(), until)

    def wait_stream(self, stream):
        self.delay(stream.ready())

    def wait_event(self, event):
        event.wait(self)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self):
        return _times.get(self._key, 0.0) <= _host_seconds()

    def is_capturing(self):
        return False

    def synchronize(self):
        _host_waits_for(_times.get(self._key, 0.0))

    def __enter__(self):
        self._entered = StreamContext(self)
        self._entered.__enter__()
        return self

    def __exit__(self, *error):
        return self._entered.__exit__(*error)

    def __eq__(self, other):
        return isinstance(other, Stream) and self._key == other._key

    def __hash__(self):
        return hash(self._key)


class ExternalStream(Stream):
    """A stream of another library."""

    def __init__(self, stream_ptr, device=None, **kwargs):
        super().__init__(device, stream_id=stream_ptr)


class Event:
    """A point in a stream."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, **kwargs):
        self.enable_timing = enable_timing
        self._seconds = None
        self._device = torch.device("cuda", cuda.current())

    @property
    def device(self):
        return self._device

    def record(self, stream=None):
        stream = stream or current_stream()
        self._device = stream.device
        self._seconds = stream.ready()

    def wait(self, stream=None):
        if self._seconds is not None:
            (stream or current_stream()).delay(self._seconds)

    def query(self):
        return self._seconds is None or self._seconds <= _host_seconds()

    def synchronize(self):
        _host_waits_for(self._seconds or 0.0)

    def elapsed_time(self, end):
        """Milliseconds to a later event."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end._seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._seconds - self._seconds) * 1000


def _host_seconds():
    """The thread's clock, put forward by what it has waited for without spending the time."""
    return time.perf_counter() + getattr(_local, "waited", 0.0)


def _host_waits_for(seconds):
    late = seconds - _host_seconds()
    if late > 0:
        _local.waited = getattr(_local, "waited", 0.0) + late


def sleep(cycles):
    """Keep the current stream busy, in virtual time."""
    stream = current_stream()
    stream.delay(stream.ready() + cycles / _CYCLES_PER_SECOND)


def synchronize(device=None):
    """Wait for all streams of a device."""
    where = cuda.index(device)
    for (index, _), seconds in list(_times.items()):
        if index == where:
            _host_waits_for(seconds)


def default_stream(device=None):
    """A device's default stream."""
    return Stream(cuda.index(device), stream_id=0)


def _currents():
    """The thread's current stream of each device, where it is not the default one."""
    return _local.__dict__.setdefault("streams", {})


def current_stream(device=None):
    """The stream that work on a device goes to now."""
    return _currents().get(cuda.index(device)) or default_stream(device)


def set_stream(stream):
    """Send work to this stream from now on."""
    if stream is not None:
        cuda.set_current(stream.device_index)
        _currents()[stream.device_index] = stream


def set_stream_by_id(stream_id, device_index, device_type):
    """As ``torch._C._cuda_setStream``."""
    set_stream(Stream(device_index=device_index, stream_id=stream_id))


class StreamContext:
    """Sends work to a stream within a block; None changes nothing."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        if self.stream is not None:
            self._device = cuda.current()
            self._before = current_stream(self.stream.device_index)
            set_stream(self.stream)

    def __exit__(self, *error):
        if self.stream is not None:
            set_stream(self._before)
            cuda.set_current(self._device)


def stream(stream):
    """As ``torch.cuda.stream``."""
    return StreamContext(stream)
