"""What torch's own C++ makes: on the device of what it works for.

It reads the device off a tensor, and our tensors look like the CPU's to it. So where it makes a
tensor without the help of Python, the new one goes to where the call that it works for began.
"""

import sys
import threading

import torch
import torch.distributed as dist
from torch.autograd import Variable

from cuda_standin.marks import index_of

_local = threading.local()


def device_of_caller():
    """The device that the C++ above the current operation works on; None for the CPU's.

    The operation's own frame is two above; if the one that called it is Python's, that has said
    which device it wants.
    """
    calls = getattr(_local, "calls", None)
    if calls and sys._getframe(2).f_code is _call.__code__:
        return calls[-1]
    return None


def _call(tensors, function, args, kwargs):
    first = next((one for one in tensors if isinstance(one, torch.Tensor)), None)
    calls = _local.__dict__.setdefault("calls", [])
    calls.append(None if first is None else index_of(first))
    try:
        return function(*args, **kwargs)
    finally:
        calls.pop()


class _Engine:
    """Runs backward passes: what autograd itself makes is on the device of the pass's roots."""

    def __init__(self, own):
        self._own = own

    def __getattr__(self, name):
        return getattr(self._own, name)

    def run_backward(self, tensors, *args, **kwargs):
        return _call(tensors, self._own.run_backward, (tensors, *args), kwargs)


class _Reducer(dist.Reducer):
    """DDP's: its buckets are on the device of the parameters."""

    def __init__(self, params, *args, **kwargs):
        self._params = params
        _call(params, super().__init__, (params, *args), kwargs)

    def _rebuild_buckets(self):
        return _call(self._params, super()._rebuild_buckets, (), {})


def install():
    """Watch the ways into the C++ that makes tensors of its own."""
    Variable._execution_engine = _Engine(Variable._execution_engine)
    dist.Reducer = _Reducer
