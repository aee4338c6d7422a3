"""The series on torch 1.13, and on the trunk before the pull request that it starts from.

The first is checked on the Python of the real 1.13.1, without its compiled code. No registry has
the second; ``trunk_tree`` has what the patches need of it, under the same names and signatures, and
runs on the stock torch.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from overlay import operations
from overlay.bases.wheels import python_files
from overlay.runtime import cache_folder, locked
from overlay.series import Series, load_series, own_series
from overlay.targets import find_target
from overlay.tree import ChangedTree, MemoryTree
from overlay.verify import verify
from overlay.weave import Weaver

OLD, TRUNK = "1.13.1", "2.0.0a0"
TREE = Path(__file__).parent / "trunk_tree"
FSDP_1_13 = "torch/distributed/fsdp/fully_sharded_data_parallel.py"
INPUTS = "torch/distributed/fsdp/_forward_inputs.py"
RUNTIME = "torch/distributed/fsdp/_runtime_utils.py"


def read_tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*.py")
        if path.is_file()
    }


@pytest.fixture(scope="session")
def old_python() -> dict[str, bytes]:
    """All Python files of torch 1.13.1, read from its wheel once and kept in the cache folder."""
    folder = cache_folder() / f"torch-{OLD}-python"
    with locked(folder, lambda: None):
        if not folder.exists():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            for path, content in python_files(OLD):
                place = part / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            part.rename(folder)
    return read_tree(folder)


@pytest.fixture(scope="session")
def trees(old_python: dict[str, bytes]) -> dict[str, MemoryTree]:
    """The two, whole: the trunk's stands on the files of 1.13.1."""
    return {
        OLD: MemoryTree(old_python),
        TRUNK: MemoryTree({**old_python, **read_tree(TREE)}),
    }


@pytest.fixture(scope="session")
def series() -> Series:
    return load_series(own_series())


def is_carried(path: str) -> bool:
    return path.startswith("torch/")


def weave(series: Series, tree: MemoryTree, version: str, count: int) -> Weaver:
    """A tree with the first patches that a version gets."""
    weaver = Weaver(tree, is_carried)
    assert all(weaver.apply(patch) for patch in series.selected(version)[:count])
    return weaver


@pytest.mark.parametrize(
    ("version", "folder"),
    [
        ("1.12.1", None),
        ("1.13.0a0", "1.13"),  # Debian's 1.13.1
        ("1.13.0", "1.13"),
        ("1.13.1+cu117", "1.13"),
        ("2.0.0a0", "trunk-90523"),
        ("2.0.0a0+git1234567", "trunk-90523"),
        ("2.0.0", None),
        ("2.0.1+cpu", None),
        ("2.1.0a0+git1234567", "."),
        ("2.2.2", "."),
        # Where FSDP2 changes
        *(("2.3.0", "2.3"), ("2.5.1", "2.3"), ("2.6.0", "2.6"), ("2.7.1", "2.7")),
        *(("2.8.0", "2.8"), ("2.11.0", "2.8"), ("2.12.1", "2.12"), ("2.13.0", "2.13")),
        ("2.15.0", "2.13"),
    ],
)
def test_which_version_gets_what(series: Series, version: str, folder: str | None) -> None:
    folders = {str(Path(patch.name).parent) for patch in series.selected(version)}
    folders.discard("." if folder != "." else "")
    assert folders == ({folder} if folder else set())


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("version", [OLD, TRUNK])
def test_every_prefix_is_sound(
    series: Series, trees: dict[str, MemoryTree], version: str, count: int
) -> None:
    assert len(series.selected(version)) == 7
    tree = trees[version]
    changes = weave(series, tree, version, count).changes()
    report = verify(tree, ChangedTree(tree, changes), list(changes))
    assert report.findings == ()
    hook = "partial of _pre_forward is called later; still required: module, args, kwargs"
    left_open = [(finding.path, finding.message) for finding in report.unresolved]
    # What is imported only where it is there: these versions do not compile
    guarded = [finding for finding in left_open if finding[0] == INPUTS]
    assert len(guarded) == (3 if count >= 6 else 0)
    left_open = [finding for finding in left_open if finding[0] != INPUTS]
    assert left_open == ([(RUNTIME, hook)] if version == TRUNK and count > 1 else [])


@pytest.mark.parametrize(
    ("version", "path", "call"),
    [(OLD, FSDP_1_13, "self._pre_forward"), (TRUNK, FSDP_1_13, "_pre_forward")],
)
def test_verify_finds_the_callers(
    series: Series, trees: dict[str, MemoryTree], version: str, path: str, call: str
) -> None:
    """With its call of _pre_forward left as it was, forward does not pass."""
    tree = trees[version]
    changes = weave(series, tree, version, 7).changes()
    content = (changes[path] or b"").decode()
    (node,) = (
        node
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == call
    )
    written = ast.get_source_segment(content, node)
    assert written is not None and written.count("args, kwargs") == 1
    changes[path] = content.replace(written, written.replace("args, kwargs", "unused")).encode()
    report = verify(tree, ChangedTree(tree, changes), list(changes))
    assert [finding.message for finding in report.findings] == [
        f"call of {'FullyShardedDataParallel.' if version == OLD else ''}_pre_forward does not"
        " bind: missing a required argument: 'kwargs';"
        f" it is {'FullyShardedDataParallel.' if version == OLD else ''}_pre_forward("
        f"{'' if version == OLD else 'state, '}handles, unshard_fn, module, args, kwargs)"
    ]


@pytest.mark.parametrize("version", [OLD, TRUNK])
def test_taking_it_back_gives_the_stock_code(
    series: Series, trees: dict[str, MemoryTree], version: str
) -> None:
    def code(content: bytes) -> str:
        """All but layout, and the imports, which may be in use elsewhere and so stay."""
        module = ast.parse(content)
        kept = [node for node in module.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
        return " ".join(ast.unparse(ast.Module(kept, [])).split())

    tree = trees[version]
    woven = ChangedTree(tree, weave(series, tree, version, 7).changes())
    backward = Weaver(woven, is_carried)
    assert all(backward.take_back(patch) for patch in reversed(series.selected(version)))
    for path, content in backward.changes().items():
        stock = tree.read(path)
        if stock is None or content is None:
            assert stock is None and content is None
        else:
            assert code(content) == code(stock) != code(woven.read(path) or b"")


@pytest.mark.parametrize("version", [OLD, TRUNK])
def test_apply_and_revert_on_a_source_tree(
    series: Series, trees: dict[str, MemoryTree], version: str, tmp_path: Path
) -> None:
    for path, content in trees[version].files.items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    (tmp_path / "version.txt").write_text(f"{version}\n")
    before = read_tree(tmp_path)
    tool = [sys.executable, "-m", "overlay"]
    without_tests = Series(series.root, series.selected(version)[:6])
    operations.apply(find_target(str(tmp_path)), without_tests)
    status = subprocess.run(
        [*tool, "status", "--json", tmp_path], capture_output=True, check=True, text=True
    )
    states = [patch["state"] for patch in json.loads(status.stdout)["patches"]]
    assert [states.count(state) for state in ("applied", "pending", "in conflict")] == [6, 1, 0]
    assert read_tree(tmp_path) != before
    subprocess.run([*tool, "revert", tmp_path], check=True, capture_output=True)
    assert read_tree(tmp_path) == before


def run_python(python: Path, code: str, *arguments: object) -> str:
    done = subprocess.run(
        [str(python), "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_sharded_tensors_share_no_default(
    series: Series, trees: dict[str, MemoryTree], stock_python: Path, tmp_path: Path
) -> None:
    """Python 3.11 refuses a shared default that can be changed, and so the whole module."""
    path = "torch/distributed/_shard/sharded_tensor/metadata.py"
    stock = tmp_path / "stock.py"
    patched = tmp_path / "patched.py"
    stock.write_bytes(trees[OLD].read(path) or b"")
    patched.write_bytes(weave(series, trees[OLD], OLD, 1).changes()[path] or b"")
    code = """
        import runpy, sys
        try:
            made = runpy.run_path(sys.argv[1])["ShardedTensorMetadata"]
        except ValueError as error:
            assert sys.version_info >= (3, 11) and "mutable default" in str(error), error
            print("refused")
        else:
            shared = made().tensor_properties is made().tensor_properties
            print("shared" if shared else "apart", made().tensor_properties == made().tensor_properties)
    """
    assert run_python(stock_python, code, stock) in ("refused\n", "shared True\n")
    assert run_python(stock_python, code, patched) == "apart True\n"


DRIVER = """
    import json, os, runpy, sys
    import torch, torch.nn as nn
    import torch.distributed, torch.distributed.utils

    # The tree's FSDP in the place of torch's
    for name in list(sys.modules):
        if name.startswith(("torch.distributed.fsdp", "torch.distributed._composable")):
            del sys.modules[name]
    for package in ("fsdp", "_composable"):
        vars(torch.distributed).pop(package, None)
    torch.distributed.__path__.insert(0, os.path.join(sys.argv[1], "torch", "distributed"))
    utils = runpy.run_path(os.path.join(torch.distributed.__path__[0], "utils.py"))
    torch.distributed.utils._to_kwargs = utils["_to_kwargs"]

    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
    from torch.distributed._composable.fully_shard import fully_shard
    assert sys.modules["torch.distributed.fsdp"].__file__.startswith(sys.argv[1])

    bf16, fp64 = torch.bfloat16, torch.float64
    seen = {}

    class Child(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name
            self.weight = nn.Parameter(torch.eye(4))
        def forward(self, x, *args, **kwargs):
            seen[self.name] = [str(t.dtype)[6:] for t in (x, *args, *kwargs.values())]
            return x @ self.weight

    class Model(Child):
        def __init__(self, wrap, root, c1, c2):
            super().__init__("root")
            self.c1, self.c2 = wrap(Child("c1"), c1), wrap(Child("c2"), c2)
            self.extra, self.keyword = (), "ids"
        def forward(self, x):
            ids = {self.keyword: torch.ones(1, dtype=torch.int64)}
            return self.c2(self.c1(super().forward(x)), *self.extra, **ids)

    class Source(nn.Module):
        def __init__(self, inner=None):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.inner = inner
        def forward(self):
            return self.weight * (2 if self.inner is None else self.inner())

    def mp(dtype=None, **kwargs):
        return MixedPrecision(param_dtype=dtype, **kwargs)

    def wrapper(module, precision):
        return module if precision == "root's" else FSDP(module, mixed_precision=precision)

    def composable(module, precision):
        return module if precision == "root's" else fully_shard(module, mixed_precision=precision)

    def run(wrap, root=None, c1="root's", c2="root's", extra=(), keyword="ids"):
        seen.clear()
        model = Model(wrap, root, c1, c2)
        model.extra, model.keyword = extra, keyword
        model = wrap(model, root)
        x = torch.ones(2, 4, requires_grad=True)
        try:
            out = model(x * 1)
            (grad,) = torch.autograd.grad(out.float().sum(), x, allow_unused=True)
        except RuntimeError as error:
            assert "dtype" in str(error), error
            return "dtype error"
        except TypeError as error:
            assert "multiple values" in str(error), error
            return "type error"
        assert grad is None or (grad.dtype == torch.float32 and grad.abs().sum() > 0)
        return {**seen, "grad": grad is not None}

    def nothing(wrap):
        try:
            inner = wrap(Source(), mp(bf16))
            return str(wrap(Source(inner), mp(bf16))().tolist())
        except IndexError:
            return "index error"

    has_flag = hasattr(MixedPrecision(), "cast_forward_inputs")
    y = torch.ones(2, 4)
    print(json.dumps({
        kind: {
            "nested bf16": run(wrap, None, c2=mp(bf16)),
            "bf16 over fp32": run(wrap, mp(bf16), c2=None),
            "three": run(wrap, mp(bf16), c1=mp(fp64), c2=mp(bf16)),
            "external": run(wrap, mp(bf16), c2=mp(bf16), extra=(y,)),
            "left alone": has_flag and run(wrap, None, c2=mp(bf16, cast_forward_inputs=False)),
            "named dtype": run(wrap, mp(bf16), c2=mp(bf16), keyword="dtype"),
            "nothing": nothing(wrap),
        }
        for kind, wrap in (("wrapper", wrapper), ("fully_shard", composable))
    }))
"""


def row(root: str, c1: str, c2: str, *extra: str, grad: bool = True) -> dict[str, object]:
    return {"root": [root], "c1": [c1], "c2": [c2, *extra, "int64"], "grad": grad}


def test_behaviour_on_the_trunk(
    series: Series, trees: dict[str, MemoryTree], stock_python: Path, tmp_path: Path
) -> None:
    """What each patch changes, for wrappers and for ``fully_shard``, which runs by hooks."""
    fp32, bf16, fp64 = "float32", "bfloat16", "float64"
    outcomes = []
    for count in range(6):
        root = tmp_path / str(count)
        files = {**read_tree(TREE), **weave(series, trees[TRUNK], TRUNK, count).changes()}
        for path, content in files.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content or b"")
        outcomes.append(json.loads(run_python(stock_python, DRIVER, root)))
    stock, autograd, every, annotated, flag, follow_up = outcomes

    three = row(bf16, fp64, bf16)
    three["c1"] = [fp64]
    for kind in ("wrapper", "fully_shard"):
        # A root of fully_shard is one for itself, so each casts, but what it casts is detached.
        detached = row(bf16, bf16, bf16, bf16, grad=False)
        if kind == "wrapper":
            assert stock[kind]["nested bf16"] == "dtype error"
            assert autograd[kind]["nested bf16"] == "dtype error"
            detached = row(bf16, bf16, bf16, fp32, grad=False)
        assert stock[kind]["external"] == detached
        assert autograd[kind]["external"] == {**detached, "grad": True}
        for some in (every, annotated, flag):
            assert some[kind]["bf16 over fp32"] == "dtype error"
            assert some[kind]["external"] == row(bf16, bf16, bf16, bf16)
        for some in (every, annotated, flag, follow_up):
            assert some[kind]["nested bf16"] == row(fp32, fp32, bf16)
            assert some[kind]["three"] == three
            assert some[kind]["nothing"] == "[2.0, 2.0, 2.0, 2.0]"
            assert some[kind]["named dtype"] == row(bf16, bf16, bf16)
        assert stock[kind]["nothing"] == autograd[kind]["nothing"] == "index error"
        assert follow_up[kind]["bf16 over fp32"] == row(bf16, bf16, fp32)
    assert flag["wrapper"]["left alone"] == follow_up["wrapper"]["left alone"] == "dtype error"
    assert flag["fully_shard"]["left alone"] == "dtype error"
    assert stock["fully_shard"]["named dtype"] == "type error"
    # Where the wrappers agree, what comes from within stays as it is
    assert follow_up["wrapper"]["external"] == row(bf16, bf16, bf16, fp32)
