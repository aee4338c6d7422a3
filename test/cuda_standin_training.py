"""Train with FSDP on two ranks and print every loss and gradient: on CUDA if there is any."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_

BF16 = {"mixed_precision": MixedPrecision(torch.bfloat16, torch.float32)}
CASES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": BF16,
    "float16": {"mixed_precision": MixedPrecision(torch.float16, torch.float16)},
    "grad op": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    "checkpointed": {**BF16, "checkpointed": True},
    "accumulated": {**BF16, "passes": 3},
    "FSDP2": {"wrap": "FSDP2"},
    "FSDP2 bfloat16": {"wrap": "FSDP2", "dtypes": (torch.bfloat16, torch.float32), "passes": 2},
    "DDP": {"wrap": "DDP"},
}


def has_fsdp2_on_the_cpu() -> bool:
    """Its streams are not for the CPU before 2.7, and 1.13 has none of it."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)


def digits(tensor: torch.Tensor) -> list[str]:
    return [value.hex() for value in tensor.detach().double().cpu().flatten().tolist()]


def wrap_all(
    model: nn.Sequential,
    device: torch.device,
    wrap: str,
    dtypes: Any = (None, None),
    **options: Any,
) -> nn.Module:
    """Wrap the model, and a layer in it by itself."""
    if wrap == "DDP":
        return DDP(model.to(device), device_ids=[device] if device.type == "cuda" else None)
    if wrap == "FSDP2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        options["mesh"] = init_device_mesh(device.type, (2,))
        options["mp_policy"] = MixedPrecisionPolicy(*dtypes)
        fully_shard(model.to(device)[3], **options)
        fully_shard(model, **options)
        return model
    model[3] = FSDP(model[3], device_id=device, **options)
    return FSDP(model, device_id=device, **options)


def local(tensor: Any) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def train(
    rank: int,
    device: torch.device,
    wrap: str = "FSDP",
    checkpointed: bool = False,
    passes: int = 1,
    **options: Any,
) -> list[Any]:
    torch.manual_seed(0)
    middle: nn.Module = nn.Linear(16, 16)
    if checkpointed:
        middle = checkpoint_wrapper(nn.Sequential(middle, nn.Dropout(0.0), nn.Tanh()))
    model = wrap_all(
        nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), middle, nn.Linear(16, 3)),
        device,
        wrap,
        **options,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    inputs = torch.Generator().manual_seed(rank)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        losses = []
        for number in range(passes):
            is_last = number == passes - 1
            no_sync = getattr(model, "no_sync", nullcontext)
            with nullcontext() if is_last else no_sync():
                x = torch.randn(5, 6, generator=inputs).to(device)
                targets = torch.tensor([0, 1, 2, 0, 1]).to(device)
                losses.append(nn.functional.cross_entropy(model(x).float(), targets))
                losses[-1].backward()
        clip = getattr(model, "clip_grad_norm_", partial(clip_grad_norm_, model.parameters()))
        norm = clip(1.0)
        gradients = [digits(local(p.grad)) for p in model.parameters() if p.grad is not None]
        optimizer.step()
        seen.append([[digits(loss) for loss in losses], digits(local(norm)), gradients])
    return seen


def rank_main(rank: int, folder: str) -> None:
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("nccl" if on_cuda else "gloo", store=store, rank=rank, world_size=2)
    results = {
        name: train(rank, device, **options)
        for name, options in CASES.items()
        if options.get("wrap") != "FSDP2" or has_fsdp2_on_the_cpu()
    }
    with open(os.path.join(folder, f"rank-{rank}"), "w") as file:
        json.dump(results, file)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    folder = tempfile.mkdtemp()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank_main, args=(rank, folder)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    results = []
    for rank in range(2):
        with open(os.path.join(folder, f"rank-{rank}")) as file:
            results.append(json.load(file))
    json.dump({"cuda": torch.cuda.is_available(), "ranks": results}, sys.stdout)


if __name__ == "__main__":
    main()
