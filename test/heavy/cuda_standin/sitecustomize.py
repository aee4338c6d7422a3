"""Makes torch 1.13 take the CPU for two GPUs, as far as FSDP's forward and backward need it.

Found by an interpreter that has this folder on PYTHONPATH, and by the processes it starts. What
runs under it is computed on the CPU, in order, and communicated with gloo; nothing is known from it
about streams, devices or NCCL.
"""

from __future__ import annotations

import contextlib
import importlib.util

if importlib.util.find_spec("torch"):
    import torch
    import torch.distributed as dist
    import torch.distributed.distributed_c10d as c10d
    import torch.distributed.utils

    # Imported before the pretended GPUs are there, which it would use.
    import torch.testing._internal.common_device_type

    class Ordered:
        """A stream or an event where everything is done in order."""

        def __init__(self, *_, **__):
            pass

        def ready(self, *_, **__):
            return True

        wait = wait_stream = wait_event = synchronize = query = record = ready

    class Device:
        """``torch.device``, which gives the CPU for a GPU."""

        def __new__(cls, *args):
            return real_device("cpu") if args[0] == "cuda" else real_device(*args)

    class DeviceType(type):
        def __instancecheck__(cls, instance):
            return isinstance(instance, real_device)

    real_device = torch.device
    torch.device = DeviceType("device", (Device,), {})

    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 2
    cuda.current_device = lambda: 0
    cuda.set_device = cuda.synchronize = lambda *_: None
    cuda.Stream = cuda.Event = Ordered
    cuda.current_stream = Ordered
    cuda.stream = contextlib.nullcontext
    torch.Tensor.record_stream = lambda *_: None
    torch.Tensor.cuda = lambda self, *_: self
    # Moving to a device's number; everything else that FSDP does with inputs stays its own.
    torch.distributed.utils._recursive_to = lambda inputs, *_: [inputs]

    real_init, real_all_reduce, real_all_gather = (
        dist.init_process_group,
        dist.all_reduce,
        dist.all_gather,
    )

    def init_process_group(backend=None, *args, **kwargs):
        return real_init("gloo", *args, **kwargs)

    def all_reduce(tensor, *args, **kwargs):
        """In float32 for what gloo cannot add."""
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        real_all_reduce(wide, *args, **kwargs)
        if wide is not tensor:
            tensor.data.copy_(wide)

    def all_gather_base(output, tensor, group=None, **_):
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        parts = [torch.empty_like(wide) for _ in range(dist.get_world_size(group))]
        real_all_gather(parts, wide.contiguous(), group=group)
        output.view(-1).copy_(torch.cat([part.view(-1) for part in parts]))

    def reduce_scatter_base(output, tensor, group=None, **_):
        total = tensor.clone()
        all_reduce(total, group=group)
        output.copy_(total.chunk(dist.get_world_size(group))[dist.get_rank(group)])

    for module in (dist, c10d):
        module.init_process_group = init_process_group
        module.all_reduce = all_reduce
        module._all_gather_base = all_gather_base
        module._reduce_scatter_base = reduce_scatter_base
