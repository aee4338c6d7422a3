"""Train with FSDP on two ranks and print every loss and gradient: on CUDA if there is any."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy

CASES = {
    "float32": {},
    "bfloat16": {"mixed_precision": MixedPrecision(torch.bfloat16, torch.float32)},
    "float16": {"mixed_precision": MixedPrecision(torch.float16, torch.float16)},
    "grad op": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
}


def digits(tensor: torch.Tensor) -> list[str]:
    return [value.hex() for value in tensor.detach().double().cpu().flatten().tolist()]


def train(rank: int, device: torch.device, options: dict[str, Any]) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 3)
    )
    model[3] = FSDP(model[3], device_id=device, **options)
    model = FSDP(model, device_id=device, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    inputs = torch.Generator().manual_seed(rank)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(5, 6, generator=inputs).to(device)
        loss = nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0, 1]).to(device))
        loss.backward()
        norm = model.clip_grad_norm_(1.0)
        gradients = [digits(p.grad) for p in model.parameters() if p.grad is not None]
        optimizer.step()
        seen.append([digits(loss), digits(norm), gradients])
    return seen


def rank_main(rank: int, folder: str) -> None:
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("nccl" if on_cuda else "gloo", store=store, rank=rank, world_size=2)
    results = {name: train(rank, device, options) for name, options in CASES.items()}
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
