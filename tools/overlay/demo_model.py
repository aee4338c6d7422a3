"""Shows a model whose second child is wrapped with bf16 under a full-precision root.

The target's interpreter runs this file by itself: it imports torch, and nothing of the tool.
Two gloo ranks on the CPU run a forward and a backward; one JSON value on standard output says
what each module received, whether it worked, and if not, why.
"""

# torch is not among what the tool is checked with.
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from typing import Any, Optional

WORLD_SIZE = 2
COLLECTIVE_TIMEOUT = timedelta(seconds=20)
# How long the other ranks have to end after one has failed.
FAILURE_TIMEOUT_SECONDS = 3
# Importing torch counts too, and on a cold disk it can be slow.
RUN_TIMEOUT_SECONDS = 120


def main() -> int:
    """Run the model and print what happened; 0 if it could be run, working or not."""
    with tempfile.TemporaryDirectory() as folder:
        report = _run_ranks(folder)
    json.dump(report, sys.stdout)
    sys.stdout.write("\n")
    return 0


def _run_ranks(folder: str) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(WORLD_SIZE)]
    done = context.Event()
    ranks = [
        # A daemon, so that no rank outlives this process.
        context.Process(target=_rank_main, args=(rank, folder, sender, done), daemon=True)
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    for _, sender in pipes:
        sender.close()
    try:
        return _merged(_collect([receiver for receiver, _ in pipes]))
    finally:
        done.set()
        for process in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _collect(receivers: list[multiprocessing.connection.Connection]) -> list[dict[str, Any]]:
    """What each rank reports, or in its place what became of it."""
    reports: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + RUN_TIMEOUT_SECONDS
    while len(reports) < len(receivers):
        waiting = [receiver for rank, receiver in enumerate(receivers) if rank not in reports]
        ready = multiprocessing.connection.wait(waiting, max(deadline - time.monotonic(), 0))
        if not ready:
            break
        for rank, receiver in enumerate(receivers):
            if receiver not in ready:
                continue
            try:
                reports[rank] = receiver.recv()
            except EOFError:
                failure = "the process ended early; what it wrote to standard error says why"
                reports[rank] = _failure(failure)
            if reports[rank]["error"]:
                # The others wait for this rank, and can only find that out.
                deadline = min(deadline, time.monotonic() + FAILURE_TIMEOUT_SECONDS)
    errors = [f"rank {rank}: {found['error']}" for rank, found in reports.items() if found["error"]]
    unfinished = _failure((errors or [f"the ranks did not finish in {RUN_TIMEOUT_SECONDS} s"])[0])
    return [reports.get(rank, unfinished) for rank in range(len(receivers))]


def _failure(error: str) -> dict[str, Any]:
    return {"torch": None, "ok": False, "error": error, "rows": []}


def _merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Rank 0's report; it is only good if the other ranks' are, and saw the same."""
    first, *others = reports
    for rank, report in enumerate(others, 1):
        error = report["error"]
        if not error and [_seen(row) for row in report["rows"]] != [
            _seen(r) for r in first["rows"]
        ]:
            error = "other dtypes than on rank 0"
        if error and first["ok"]:
            first = {**first, "ok": False, "error": f"rank {rank}: {error}"}
    return first


def _seen(row: dict[str, Any]) -> tuple[str, ...]:
    # Gradients differ: a rank has none for a parameter of which it has no shard.
    return row["module"], row["parameters"], row["received"]


def _rank_main(rank: int, folder: str, sender: Any, done: Any) -> None:
    # torch may write to standard output, which is for the report alone.
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    error: Optional[str] = None
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/rendezvous",
            rank=rank,
            world_size=WORLD_SIZE,
            timeout=COLLECTIVE_TIMEOUT,
        )
        _forward_and_backward(rows)
    except Exception as exception:
        text = str(exception).strip() or type(exception).__name__
        error = text.splitlines()[0]
    sender.send({"torch": torch.__version__, "ok": error is None, "error": error, "rows": rows})
    # The other rank may still need this one.
    done.wait(RUN_TIMEOUT_SECONDS)


def _forward_and_backward(rows: list[dict[str, Any]]) -> None:
    """Append one row per module, in the order of their forwards."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    def name(dtype: Optional[torch.dtype]) -> Optional[str]:
        return None if dtype is None else str(dtype).replace("torch.", "")

    class Child(nn.Linear):
        """A linear layer that adds a row for its forward."""

        def __init__(self, module: str) -> None:
            super().__init__(8, 8)
            self.row: dict[str, Any] = {"module": module}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.row.update(
                parameters=name(self.weight.dtype), received=name(x.dtype), gradient=None
            )
            rows.append(self.row)
            return super().forward(x)

    class Model(nn.Module):
        """Its own scale, then c1, then c2."""

        def __init__(self, c1: nn.Module, c2: nn.Module) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(8))
            self.c1 = c1
            self.c2 = c2
            self.row: dict[str, Any] = {"module": "root"}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.row.update(
                parameters=name(self.scale.dtype), received=name(x.dtype), gradient=None
            )
            rows.append(self.row)
            out: torch.Tensor = self.c2(self.c1(x * self.scale))
            return out

    def wrap(module: nn.Module, precision: Optional[MixedPrecision]) -> nn.Module:
        return FullyShardedDataParallel(
            module,
            mixed_precision=precision,
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )

    torch.manual_seed(0)
    c1, c2 = Child("c1"), Child("c2")
    root = Model(c1, wrap(c2, MixedPrecision(param_dtype=torch.bfloat16)))
    model = wrap(root, None)
    model(torch.randn(4, 8)).float().pow(2).sum().backward()

    missing = []
    owned = [(root.row, [root.scale]), (c1.row, [c1.weight, c1.bias])]
    owned.append((c2.row, [c2.weight, c2.bias]))
    for row, parameters in owned:
        # A parameter whose shard is on the other rank has no gradient here.
        shards = [parameter for parameter in parameters if parameter.numel()]
        gradients = [shard.grad for shard in shards if shard.grad is not None]
        if len(gradients) < len(shards):
            missing.append(row["module"])
        elif gradients:
            row["gradient"] = name(gradients[0].dtype)
    if missing:
        raise RuntimeError(f"no gradient reached {', '.join(missing)}")


if __name__ == "__main__":
    sys.exit(main())
