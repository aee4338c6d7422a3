"""A stand-in for CUDA on machines without a GPU, for upstream's tests alone.

Tensors "on CUDA" live in ordinary memory and carry a mark: their storage is known to be on a
device. Factories, ``.cuda()`` and ``.to()`` set it, every operation carries it on and refuses to
mix devices where CUDA does, and what Python sees of a tensor's device goes by it. Streams and
events keep the order in which they were given work; NCCL is gloo. What is computed is computed by
the CPU's kernels, in float32 where one lacks a low precision that CUDA has.
"""

import threading

NAME = "CUDA stand-in"

_installed = False
_main_mode = None


def install(devices):
    """Make this process see ``devices`` CUDA devices; once, and before torch is used."""
    global _installed
    if _installed:
        return
    _installed = True
    from cuda_standin import autocast, beneath, collectives, device, dispatch, tensors

    device.install(devices)
    tensors.install()
    collectives.install()
    autocast.install()
    beneath.install()
    _enter_in_every_thread(dispatch.StandIn)


def _enter_in_every_thread(mode):
    """Operations are watched by a mode, which is a thread's own."""
    start = threading.Thread._bootstrap_inner

    def start_watched(self):
        with mode():
            start(self)

    threading.Thread._bootstrap_inner = start_watched
    global _main_mode  # torch does not keep it alive while it is set aside
    _main_mode = mode()
    _main_mode.__enter__()
