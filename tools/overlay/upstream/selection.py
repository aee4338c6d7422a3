"""Which test files run, and which share of them in a shard."""

from __future__ import annotations

import ast
import heapq
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from overlay.errors import UsageError
from overlay.upstream import store
from overlay.upstream.halves import Halves
from overlay.upstream.runner import Unit

FSDP_TESTS = "test/distributed/fsdp"
_SECONDS_A_TEST = 1.0


class Selection(NamedTuple):
    """The files to run, and what they are in words."""

    files: tuple[str, ...]
    words: str


def select(halves: Halves, named: Sequence[str], every: bool) -> Selection:
    """Files by name, all of FSDP's, or those that the patches name.

    Raises UsageError for what is not there: a file that is left out must not look as if it passed.
    """
    trees = (halves.after.tree, halves.before.tree)
    missing = ""
    if not halves.has_upstream_tests:
        missing = (
            f"the source of {halves.base.name} came from a wheel, which has no tests: fetch it from"
            f" a checkout ('torch-overlay base fetch {halves.base.name} --anew --source PATH')"
        )
    if named:
        files: dict[str, None] = {}
        for name in named:
            found = _files(trees, name)
            if not found:
                raise UsageError(
                    f"no test file '{name}' in {halves.base.name}",
                    [
                        missing
                        or f"name one by its path in PyTorch, as in {FSDP_TESTS}/test_wrap.py"
                    ],
                )
            files.update(dict.fromkeys(found))
        return Selection(tuple(files), ", ".join(named))
    if every and missing:
        raise UsageError(missing)
    if every:
        everything = dict.fromkeys([*_files(trees, FSDP_TESTS), *halves.own_tests])
        return Selection(tuple(everything), f"all of {FSDP_TESTS} and the series' own")
    related = tuple(path for path in halves.related if any((t / path).is_file() for t in trees))
    absent = [path for path in halves.related if path not in related]
    if not related:
        raise UsageError(
            f"the patches for {halves.base.name} name no test that is there: name files, or add a"
            " Tests field to a patch",
            [*absent, *([missing] if missing else [])],
        )
    if missing:
        return Selection(related, "the series' own tests; PyTorch's are not there")
    if absent:
        raise UsageError(f"a patch's Tests field names {absent[0]}, which is not there")
    return Selection(related, "tests that the patches name")


def _files(trees: Sequence[Path], name: str) -> list[str]:
    """A file, or the test files of a folder; by its path, or by its name among FSDP's."""
    name = name.strip("/")
    for path in (name, f"{FSDP_TESTS}/{name}", f"{FSDP_TESTS}/{name}.py"):
        found: set[str] = set()
        for tree in trees:
            place = tree / path
            if ".." in Path(path).parts:
                continue
            if place.is_file():
                found.add(path)
            elif place.is_dir():
                tests = place.rglob("test_*.py")
                found.update(str(test.relative_to(tree)) for test in tests)
        if found:
            return sorted(found)
    return []


def needing_several_devices(files: Sequence[str], trees: Sequence[Path]) -> list[str]:
    """The tests that upstream says need two CUDA devices or more, as ``file::Class::test``.

    By their decorators: a parametrized test counts once.
    """
    found: dict[str, None] = {}
    for file in files:
        for tree in trees:
            place = tree / file
            if not place.is_file():
                continue
            for node in ast.walk(ast.parse(place.read_bytes())):
                if isinstance(node, ast.ClassDef):
                    tests = (t for t in node.body if isinstance(t, ast.FunctionDef))
                    names = [t.name for t in tests if any(map(_wants_several, t.decorator_list))]
                    found.update(dict.fromkeys(f"{file}::{node.name}::{name}" for name in names))
    return list(found)


def _wants_several(decorator: ast.expr) -> bool:
    if not isinstance(decorator, ast.Call) or not decorator.args:
        return False
    name, count = ast.unparse(decorator.func), decorator.args[0]
    if name.rsplit(".", 1)[-1] != "skip_if_lt_x_gpu":
        return False
    # What is not a number there is taken for as many as a test can want.
    is_one = isinstance(count, ast.Constant) and isinstance(count.value, int) and count.value < 2
    return not is_one


def parse_shard(text: str) -> tuple[int, int]:
    """``K/N``, the K-th of N shares."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"--shard {text}: write it as K/N, with K from 1 to N, as in 1/4")
    return number, count


def weights(
    files: Sequence[str], tree: Path, durations: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """How long each file takes, by earlier runs, or else by how many tests it seems to have."""
    found = {}
    for file in files:
        known = durations.get(file)
        if known:
            found[file] = sum(known.values())
        else:
            path = tree / file
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            found[file] = max(1, len(re.findall(r"^\s+def test_", text, re.M))) * _SECONDS_A_TEST
    return found


def plan_shards(weight: Mapping[str, float], count: int) -> list[list[Unit]]:
    """All files, dealt into shares that take about as long as one another.

    A file that is longer than a share is split by its tests' order, so that the shares together are
    all tests whatever a file turns out to hold.
    """
    share = sum(weight.values()) / count
    units = []
    for file, seconds in weight.items():
        parts = min(count, -int(-seconds // share)) if share else 1
        for number in range(1, parts + 1):
            part = (number, parts) if parts > 1 else None
            units.append((seconds / parts, Unit(file, part)))
    units.sort(key=lambda unit: (-unit[0], unit[1].file, unit[1].part or (0, 0)))
    shares: list[list[Unit]] = [[] for _ in range(count)]
    loads = [(0.0, number) for number in range(count)]
    for seconds, unit in units:
        load, number = heapq.heappop(loads)
        shares[number].append(unit)
        heapq.heappush(loads, (load + seconds, number))
    order = list(weight)
    for units_of_share in shares:
        units_of_share.sort(key=lambda unit: (order.index(unit.file), unit.part or (0, 0)))
    return shares


def plan_name(shares: Sequence[Sequence[Unit]]) -> str:
    """The same on two machines if they deal alike: only then are their shards all tests."""
    return store.key_of([[[u.file, u.part] for u in share] for share in shares])[:8]
