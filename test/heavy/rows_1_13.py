"""What nested wrappers do on an installed torch 1.13, printed as JSON; run under the stand-in.

The tests of the series itself need all of it; this runs on each of its prefixes.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision

BF16 = torch.bfloat16


class Child(nn.Module):
    def __init__(self, seen, name):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen, self.name = seen, name

    def forward(self, x, *args):
        self.seen[self.name] = [str(t.dtype).split(".")[1] for t in (x, *args)]
        return self.linear(x)


class Model(Child):
    def __init__(self, seen, c2_precision, extra):
        super().__init__(seen, "root")
        self.c1 = Child(seen, "c1")
        self.c2 = FSDP(Child(seen, "c2"), mixed_precision=c2_precision)
        self.extra = extra

    def forward(self, x):
        return self.c2(self.c1(super().forward(x)), *self.extra)


class Source(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.inner = inner

    def forward(self):
        return self.weight * (2 if self.inner is None else self.inner())


def run(root, c2, extra=()):
    """The dtypes that the forwards see, and that of the input's gradient, or the error."""
    torch.manual_seed(0)
    seen = {}
    model = FSDP(Model(seen, c2, extra).cuda(), mixed_precision=root)
    x = torch.randn(2, 4, requires_grad=True)
    try:
        model(x * 1).float().sum().backward()
    except RuntimeError as error:
        return "dtype error" if "dtype" in str(error) or "scalar type" in str(error) else str(error)
    seen["input's gradient"] = str(x.grad.dtype).split(".")[1] if x.grad is not None else None
    seen["c1 learns"] = bool(
        model.params[0].grad is not None and model.params[0].grad.abs().sum() > 0
    )
    return seen


def nothing():
    """A forward without arguments, in a wrapper and around it."""
    model = FSDP(
        Source(FSDP(Source().cuda(), mixed_precision=MixedPrecision(BF16))).cuda(),
        mixed_precision=MixedPrecision(BF16),
    )
    try:
        return model().tolist()
    except IndexError:
        return "index error"


def main(rank, file, out):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=2)
    left_alone = None
    if hasattr(MixedPrecision(), "cast_forward_inputs"):
        left_alone = run(None, MixedPrecision(BF16, cast_forward_inputs=False))
    rows = {
        "nested bf16": run(None, MixedPrecision(BF16)),
        "bf16 over fp32": run(MixedPrecision(BF16), None),
        "external": run(MixedPrecision(BF16), MixedPrecision(BF16), (torch.ones(2),)),
        "left alone": left_alone,
        "nothing": nothing(),
    }
    if rank == 0:
        with open(out, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"{folder}/rendezvous", sys.argv[1])
        torch.multiprocessing.start_processes(main, arguments, nprocs=2, start_method="fork")
