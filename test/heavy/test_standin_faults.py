"""The CUDA stand-in hides no faults: FSDP is broken on purpose, and upstream's tests notice.

It takes the whole of the base v1.13.1, whose torch is a download of three gigabytes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from overlay import operations
from overlay.bases import fetch, fetch_runtime, find_base
from overlay.runtime import copy_of
from overlay.series import load_series
from overlay.targets import find_target
from overlay.upstream.results import Outcome
from overlay.upstream.runner import Half, Settings, Unit, run_units

BASE = find_base("v1.13.1")
FOLDER = "test/distributed/fsdp"

pytestmark = pytest.mark.timeout(1200)


class Fault(NamedTuple):
    """How FSDP is broken, one of upstream's tests that notices, and what its failure says."""

    hunk: str
    file: str
    test: str
    says: str


FAULTS = {
    "inputs not cast": Fault(
        """\
torch/distributed/fsdp/fully_sharded_data_parallel.py
@@ FullyShardedDataParallel._cast_fp_inputs_to_dtype.cast_fn
 y =
-x.to(dtype)
+x.clone()
""",
        "test_fsdp_mixed_precision.py",
        "TestFSDPMixedPrecisionUnsharded and test_mixed_precision_e2e_full_shard",
        "",
    ),
    "inputs cast to the wrong dtype": Fault(
        """\
torch/distributed/fsdp/fully_sharded_data_parallel.py
@@ FullyShardedDataParallel._cast_fp_inputs_to_dtype.cast_fn
 y = x.to(
-    dtype
+    torch.bfloat16
 )
""",
        "test_fsdp_mixed_precision.py",
        "TestFSDPMixedPrecisionUnsharded and test_mixed_precision_e2e_full_shard",
        "",
    ),
    "gradients cut": Fault(
        """\
torch/distributed/fsdp/flat_param.py
@@ FlatParamHandle._get_unflat_views
 torch.split(
-    tensor
+    tensor.detach()
     , flat_param._numels
""",
        "test_fsdp_core.py",
        "TestParityWithDDP and test_nested_wrapped_model_offload_false_none",
        "",
    ),
    "no reduce-scatter": Fault(
        """\
torch/distributed/algorithms/_comm_hooks/default_hooks.py
@@ reduce_scatter_hook
     ...
-    dist._reduce_scatter_base(output, grad, group=state.process_group)
+    pass
     if state.gradient_postdivide_factor > 1:
         ...
""",
        "test_fsdp_core.py",
        "TestParityWithDDP and test_nested_wrapped_model_offload_false_none",
        "",
    ),
    "the first rank's shard everywhere": Fault(
        """\
torch/distributed/fsdp/flat_param.py
@@ FlatParamHandle._get_unpadded_shard
-chunks[rank]
+next(iter(chunks))
""",
        "test_fsdp_core.py",
        "TestParityWithDDP and test_nested_wrapped_model_offload_false_none",
        "",
    ),
    "a module left on the CPU": Fault(
        """\
torch/distributed/fsdp/fully_sharded_data_parallel.py
@@ FullyShardedDataParallel._move_module_to_device
 module =
-module.to(device_from_device_id)
+module.to(cpu_device)
""",
        "test_fsdp_misc.py",
        "test_fsdp_device_id_use_index_False",
        "",
    ),
    "gradients moved to the CPU": Fault(
        """\
torch/distributed/algorithms/_comm_hooks/default_hooks.py
@@ reduce_scatter_hook
 dist._reduce_scatter_base(output, grad
+.cpu()
 , group=state.process_group)
""",
        "test_fsdp_core.py",
        "TestParityWithDDP and test_nested_wrapped_model_offload_false_none",
        "Tensors must be CUDA",
    ),
}

MAIL = """\
From: Ada Example <ada@example.com>
Date: Mon, 5 Dec 2022 10:00:00 +0000
Subject: Break FSDP

On purpose.
---
"""


@pytest.fixture(scope="session")
def stock() -> Half:
    """The base as it is."""
    source = fetch(BASE).source
    assert source is not None and source.has_tests
    return Half("stock", (), fetch_runtime(BASE), Path(source.folder))


@pytest.fixture
def broken(stock: Half, fault: Fault, tmp_path: Path) -> Iterator[Half]:
    """The base with one fault."""
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "series").write_text("fault.apatch\n")
    (patches / "fault.apatch").write_text(MAIL + fault.hunk)
    # Beside the original, since hard links do not cross file systems.
    with tempfile.TemporaryDirectory(prefix="fault-", dir=stock.venv.parent) as folder:
        venv = copy_of(stock.venv, Path(folder) / "venv")
        operations.apply(find_target(str(venv)), load_series(tmp_path))
        yield Half("broken", (), venv, stock.tree)


def run(half: Half, fault: Fault) -> tuple[Outcome, ...]:
    unit = Unit(f"{FOLDER}/{fault.file}")
    settings = Settings(standin=True, keyword=fault.test, timeout=120)
    result = run_units(half, [unit], settings, lambda event: None)[unit]
    assert not result.problems, result.problems
    assert result.outcomes
    return result.outcomes


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_is_noticed(stock: Half, broken: Half, fault: Fault) -> None:
    before = run(stock, fault)
    assert not any(outcome.failed for outcome in before), before
    failed = [outcome for outcome in run(broken, fault) if outcome.failed]
    assert failed
    assert all(fault.says in outcome.reason for outcome in failed), failed
