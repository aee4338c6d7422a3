"""Measures how forward inputs are cast; runs inside a torch that ``bench cast`` starts it in.

It reads one JSON request a line from standard input and answers each with one JSON line: what to
time (stock code, ours, or the bare loop over dtypes) is asked for in turn from outside, so that two
processes can take turns too.
"""

# torch is not among what the tool is checked with.
# mypy: disable-error-code="import-not-found,misc,untyped-decorator,no-any-return"

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.util
import json
import os
import sys
import time
import types
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.utils._pytree as pytree
from torch.nn.utils.rnn import pack_sequence

LOW, HIGH = torch.bfloat16, torch.float32
LAYERS, WIDTH = 32, 8
# Whether they cast, in the order in which they are made.
MODELS = (True, False, False, True)

Cast = Callable[[torch.dtype, Any, Any], Any]


def casts(ours: str) -> dict[str, Cast]:
    """The functions to compare: stock FSDP1's and FSDP2's, where there are any, and ours."""
    found: dict[str, Cast] = {}
    spec = importlib.util.spec_from_file_location("forward_inputs", ours)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found["ours"] = module._cast_inputs
    try:
        from torch.distributed.utils import _cast_forward_inputs
    except ImportError:  # torch 1.13
        from torch.distributed.fsdp import FullyShardedDataParallel

        method = FullyShardedDataParallel._cast_fp_inputs_to_dtype
        _cast_forward_inputs = functools.partial(method, None)
    found["FSDP1"] = lambda dtype, args, kwargs: _cast_forward_inputs(dtype, *args, **kwargs)
    for name in ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp"):
        try:
            state = importlib.import_module(f"{name}._fsdp_state")
        except ImportError:
            continue
        found["FSDP2"] = functools.partial(cast_as_fsdp2, state)
        break
    return found


def cast_as_fsdp2(state: Any, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    """What a release's FSDP2 does, by the names that its module has for it."""
    through = getattr(state, "tree_map", None) or state._apply_to_tensors
    cast = functools.partial(state._cast_fp_tensor, dtype)
    return through(cast, args), through(cast, kwargs)


def bare(dtype: torch.dtype, args: Any, kwargs: Any) -> None:
    """The least that can be done in Python: look at each tensor's dtype."""
    for x in args[0] if type(args[0]) is list else args:
        x.dtype  # noqa: B018


def inputs(row: str, device: str) -> tuple[torch.dtype, Any]:
    """The dtype to cast to and the arguments of a row: ``right 4``, ``list 100``, ``cast 1``..."""
    kind, count = row.split()
    dtype = HIGH if kind in ("right", "list") else LOW
    tensors = [torch.ones(2, device=device) for _ in range(int(count))]
    if kind == "dict":
        settled = [x if n in (3, 7) else x.to(LOW) for n, x in enumerate(tensors)]
        return dtype, ({str(n): x for n, x in enumerate(settled)},)
    return dtype, ([tensors] if kind == "list" else tensors)


class Model(nn.Module):
    """Small layers that take three arguments each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, y, ids)
        return x


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, y: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def join() -> None:
    """A process group of this process alone."""
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


@functools.lru_cache(None)
def model(cast: bool, device: str, number: int) -> Callable[[], Any]:
    """A forward of a model whose layers are FSDP2's and cast, or do not cast, their inputs."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    join()
    policy = MixedPrecisionPolicy(param_dtype=LOW, cast_forward_inputs=cast)
    whole = Model().to(device)
    for layer in whole.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(whole, mp_policy=policy)
    x = torch.ones(2, WIDTH, dtype=LOW, device=device)
    y, ids = torch.ones_like(x), torch.arange(2, device=device)

    @torch.no_grad()
    def run() -> Any:
        return whole(x, y, ids)

    run()
    return run


def timed(run: Callable[[], Any], times: int, device: str) -> float:
    """Microseconds that a call takes, over ``times`` of them.

    On the CPU they are this thread's own, which other processes do not add to.
    """
    if device == "cpu":
        started = time.thread_time()
        for _ in range(times):
            run()
        return (time.thread_time() - started) / times * 1e6
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / times * 1e6


def each(dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    """A cast each: what ours does for a list of tensors."""
    return [x.to(dtype) for x in args]


def foreach(dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    """All at once, which autograd does not record."""
    new = [torch.empty_like(x, dtype=dtype) for x in args]
    torch._foreach_copy_(new, list(args))
    return new


def events(run: Callable[[], Any]) -> list[str]:
    """What the profiler sees of a call: operators, and on CUDA launches, kernels and waits."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=kinds) as profiler:
        run()
    names = [event.name for event in profiler.events()]
    # The profiler's own, at its end.
    return [name for name in names if name != "cudaDeviceSynchronize"]


class _Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class _Frozen:
    x: Any


@dataclasses.dataclass
class _NotInit:
    x: Any
    twice: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.twice = self.x * 2


class _Labelled(list):  # type: ignore[type-arg]
    label: Any


class _Registered:
    def __init__(self, x: Any) -> None:
        self.x = x


class _Tagged(torch.Tensor):
    pass


def contract() -> dict[str, Callable[[torch.Tensor], Any]]:
    """Inputs made of a tensor, by the words for them in the table."""

    def moved(x: torch.Tensor) -> Any:
        made = collections.OrderedDict(a=x, b=1)
        made.move_to_end("a")
        return made

    def labelled(x: torch.Tensor) -> Any:
        made = _Labelled([x])
        made.label = "label"
        return made

    def cycle(x: torch.Tensor) -> Any:
        made: list[Any] = [x]
        made.append(made)
        return made

    def deep(x: torch.Tensor) -> Any:
        made: Any = x
        for _ in range(5000):
            made = [made]
        return made

    rows: dict[str, Callable[[torch.Tensor], Any]] = {
        "list": lambda x: [x],
        "namedtuple": lambda x: _Pair(x, 1),
        "frozen dataclass": _Frozen,
        "dataclass with an init=False field": _NotInit,
        "OrderedDict": moved,
        "defaultdict": lambda x: collections.defaultdict(list, a=x),
        "list subclass with an attribute": labelled,
        "UserDict": lambda x: collections.UserDict(a=x),
        "mappingproxy": lambda x: types.MappingProxyType({"a": x}),
        "PackedSequence": lambda x: pack_sequence([x]),
        "registered with pytree": _Registered,
        "one tensor twice": lambda x: [x, x],
        "5000 lists deep": deep,
        "a list in itself": cycle,
        "any other object": lambda x: types.SimpleNamespace(x=x),
        "tensor": lambda x: x,
        "complex tensor": lambda x: x.to(torch.complex64),
        "sparse tensor": lambda x: x.to_sparse(),
        "nested tensor": lambda x: torch.nested.nested_tensor([x, x]),
        "quantized tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "meta tensor": lambda x: x.to("meta"),
        "tensor subclass": lambda x: x.as_subclass(_Tagged),
    }
    if hasattr(torch, "float8_e4m3fn"):
        rows["float8 tensor"] = lambda x: x.to(torch.float8_e4m3fn)
    if importlib.util.find_spec("torch.distributed.tensor"):
        rows["DTensor"] = as_dtensor
    return rows


def as_dtensor(x: torch.Tensor) -> Any:
    """The tensor, on a mesh of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    join()
    return DTensor.from_local(x, init_device_mesh("cpu", (1,)))


def outcome(cast: Cast, make: Callable[[torch.Tensor], Any], dtype: torch.dtype) -> str:
    """What becomes of an input of float32, in a few words."""
    given = make(torch.ones(2))
    try:
        args, _ = cast(dtype, (given,), {})
    except Exception as error:
        return type(error).__name__
    new = args[0]
    if new is given:
        return "the same object"
    if type(new) is not type(given):
        return f"becomes a {type(new).__name__}"
    if isinstance(new, torch.Tensor):
        return "cast" if new.dtype == dtype else "a copy, not cast"
    tensors = list(tensors_in(new))
    if any(x.dtype != dtype for x in tensors):
        return "a copy, not cast" if dtype == LOW else "a copy"
    if _attributes(new) != _attributes(given):
        return "a copy that lost attributes"
    if len(set(map(id, tensors))) != len(set(map(id, tensors_in(given)))):
        return "two tensors"
    return "cast" if dtype == LOW else "a copy"


def _attributes(x: Any) -> list[str]:
    return sorted(getattr(x, "__dict__", {}))


def tensors_in(x: Any) -> Any:
    """The floating-point tensors in one of the inputs above."""
    while type(x) is list and len(x) == 1:
        x = x[0]
    if isinstance(x, torch.Tensor):
        if x.is_floating_point():
            yield x
    elif isinstance(x, (list, tuple)):
        for item in x:
            yield from tensors_in(item)
    elif isinstance(x, collections.abc.Mapping):
        yield from tensors_in(list(x.values()))
    elif hasattr(x, "__dict__"):
        yield from tensors_in(list(vars(x).values()))


class Worker:
    """Answers requests."""

    def __init__(self, ours: str, device: str) -> None:
        self.ours, self.device = ours, device
        self.runs: dict[tuple[str, str], Callable[[], Any]] = {}

    def row(self, row: str, which: str) -> Callable[[], Any]:
        """A call of one of the functions with a row's inputs."""
        key = row, which
        if key not in self.runs:
            others = {"bare": bare, "each": each, "foreach": foreach}
            cast = others.get(which) or casts(self.ours)[which]
            dtype, args = inputs(row, self.device)
            self.runs[key] = functools.partial(cast, dtype, tuple(args), {})
        return self.runs[key]

    def time_row(self, row: str, which: str, times: int) -> float:
        return timed(self.row(row, which), times, self.device)

    def time_model(self, times: int) -> list[tuple[float, float]]:
        """Microseconds a layer of some forwards, each with casting and without."""
        # Two models of each: where one lies in memory makes as much of a difference.
        models = [(cast, model(cast, self.device, n)) for n, cast in enumerate(MODELS)]
        models[0][1]()  # the process has been asleep
        pairs = []
        for _ in range(times):
            took = {True: 0.0, False: 0.0}
            for cast, run in models:
                took[cast] += timed(run, 1, self.device) / LAYERS / 2
            models.append(models.pop(0))
            pairs.append((took[True], took[False]))
        return pairs

    def events(self, row: str, which: str) -> list[str]:
        return events(self.row(row, which))

    def has_fsdp2(self) -> str:
        """Why FSDP2 cannot run here, if so."""
        if not importlib.util.find_spec("torch.distributed.fsdp._fully_shard"):
            return "this release has none, or it is not public yet"
        if self.device == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
            return "in this release it does not run on the CPU"
        return ""

    def has_foreach(self) -> bool:
        return hasattr(torch, "_foreach_copy_")

    def has_cuda(self) -> bool:
        return torch.cuda.is_available()

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "python": sys.version.split()[0]}

    def contract(self) -> dict[str, dict[str, dict[str, str]]]:
        """By row, then function, what is cast, and what becomes of what needs no cast."""
        register = getattr(pytree, "register_pytree_node", None) or pytree._register_pytree_node
        register(_Registered, lambda r: ([r.x], None), lambda xs, _: _Registered(next(iter(xs))))
        return {
            name: {
                which: {"cast": outcome(cast, make, LOW), "settled": outcome(cast, make, HIGH)}
                for which, cast in casts(self.ours).items()
            }
            for name, make in contract().items()
        }


def main() -> None:
    """Serve until standard input ends."""
    # Whatever libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    worker = Worker(*sys.argv[1:])
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(worker, name)(*arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
