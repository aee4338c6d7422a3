"""What torch's own C++ does where no Python is in between: it sees only tensors on the CPU.

Where it makes tensors beside them, of no others, they are to be on the same device.
"""

import sys
import threading

import torch
import torch.distributed as dist
import torch.utils._python_dispatch
from torch.autograd import Variable

from cuda_standin.marks import index_of

_local = threading.local()


def call(index, function, *args, **kwargs):
    """Call what is C++, and begins with tensors that are on the CUDA device ``index``."""
    before = getattr(_local, "index", None)
    _local.index = index
    try:
        return function(*args, **kwargs)
    finally:
        _local.index = before


def is_cause():
    """Asked by an operation: whether it is of ``call``'s C++ itself.

    A hook or a Python function that C++ calls has a frame of its own.
    """
    frame = sys._getframe(2)
    while frame.f_code.co_filename == torch.utils._python_dispatch.__file__:
        frame = frame.f_back
    return frame.f_code is call.__code__


def device():
    """The index of the device on which ``call``'s C++ is working."""
    return _local.index


def work_goes_on(index):
    """Note that ``call``'s C++ works on this device from now on."""
    _local.index = index


def _first_index(tensors):
    return next(filter(lambda index: index is not None, map(index_of, tensors)), None)


class _Engine:
    """The autograd engine, which fills in gradients that nothing was computed for."""

    def __init__(self, own):
        self._own = own

    def __getattr__(self, name):
        return getattr(self._own, name)

    def run_backward(self, tensors, *args, **kwargs):
        return call(_first_index(tensors), self._own.run_backward, tensors, *args, **kwargs)


class _Reducer(dist.Reducer):
    """DDP's, which makes its buckets beside the parameters."""

    def __init__(self, parameters, *args, **kwargs):
        self._index = _first_index(parameters)
        call(self._index, super().__init__, parameters, *args, **kwargs)

    def _rebuild_buckets(self):
        return call(self._index, super()._rebuild_buckets)


def install():
    """Take the place of what calls such C++."""
    Variable._execution_engine = _Engine(Variable._execution_engine)
    _Reducer.__name__ = _Reducer.__qualname__ = "Reducer"
    dist.Reducer = _Reducer
