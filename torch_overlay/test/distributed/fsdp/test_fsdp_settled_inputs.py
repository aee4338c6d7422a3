# Owner(s): ["oncall: distributed"]

import functools
import itertools
import os
import sys
import traceback
from collections import defaultdict, UserDict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
)
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
)
from torch.distributed.fsdp._forward_inputs import _cast_inputs
from torch.nn.utils.rnn import pack_sequence, PackedSequence
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.fsdp_forward_recorder import ForwardRecorder


try:
    from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
except ImportError:
    try:
        from torch.distributed._composable.fsdp import (
            fully_shard,
            MixedPrecisionPolicy,
        )
    except ImportError:
        fully_shard = None

ON_GPU = torch.cuda.is_available()
# On the CPU it needs streams that not all versions have
HAS_FSDP2 = fully_shard is not None and (
    ON_GPU or hasattr(torch.cpu.Stream, "record_event")
)
FP32, BF16 = torch.float32, torch.bfloat16
DIM = 4


def needs_two_ranks(fn: Callable) -> Callable:
    """On the CPU the ranks are processes that use gloo, of which there are enough."""
    return skip_if_lt_x_gpu(2)(fn) if ON_GPU else fn


def device() -> torch.device:
    if ON_GPU:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def fsdp1(module: nn.Module, **kwargs: Any) -> nn.Module:
    precision = MixedPrecision(param_dtype=BF16, **kwargs)
    return FSDP(
        module, mixed_precision=precision, device_id=device(), use_orig_params=True
    )


def fsdp2(module: nn.Module, **kwargs: Any) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=BF16, **kwargs)
    return fully_shard(module, mp_policy=policy)


class Outer(nn.Module):
    """Hands an activation on that requires a gradient, and all else as it is."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(DIM, DIM)
        self.inner = inner

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.inner(self.first(x), *args, **kwargs)


class Inner(nn.Module):
    """Adds what ``use`` makes of the inputs."""

    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)
        self.use = use

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.linear(x + self.use(*args, **kwargs))


class Source(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self) -> torch.Tensor:
        return self.weight * 2


class Single(NamedTuple):
    x: Any


@dataclass(frozen=True)
class Frozen:
    x: Any


@dataclass
class NotInit:
    x: Any
    twice: Any = field(init=False)

    def __post_init__(self) -> None:
        self.twice = self.x * 2


@dataclass
class Failure(Exception):
    x: Any


class TestFSDPSettledInputs(FSDPTest):
    """What a forward gets for each kind of input, in FSDP1 and in FSDP2."""

    @property
    def world_size(self) -> int:
        return 2

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        if ON_GPU:
            return super()._run(rank, test_name, file_name, pipe, **kwargs)
        # The base class skips where there is no accelerator
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        torch.set_num_threads(1)
        dist.init_process_group(
            backend="gloo",
            init_method=self.init_method,
            world_size=self.world_size,
            rank=rank,
            timeout=timedelta(seconds=180),
        )
        dist.barrier()
        # Exits with an error if the test fails
        self.run_test(test_name, pipe)
        dist.barrier()
        # The interpreter's own end can abort under threads of gloo's that still run
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def ones(self, dtype: torch.dtype = FP32, **kwargs: Any) -> torch.Tensor:
        return torch.ones(2, DIM, device=device(), dtype=dtype, **kwargs)

    def in_every_lane(self, cases: Dict[str, Callable[[Callable, bool], None]]) -> None:
        """
        Run each case with FSDP1 and FSDP2, as the root and nested in one, and
        name all that fail on any rank.
        """
        lanes = [fsdp1, fsdp2] if HAS_FSDP2 else [fsdp1]
        failures: Dict[str, str] = {}
        for lane, nested in itertools.product(lanes, (False, True)):
            for name, case in cases.items():
                torch.manual_seed(0)
                try:
                    case(lane, nested)
                except Exception:
                    where = f"{lane.__name__}, {'nested' if nested else 'root'}: {name}"
                    failures[where] = traceback.format_exc()
                dist.barrier()
        gathered: List[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, failures)
        failed = sorted(set().union(*gathered))
        self.assertFalse(failed, f"{failed}\n" + "\n".join(failures.values()))

    def build(
        self, lane: Callable, nested: bool, inner: nn.Module, **kwargs: Any
    ) -> nn.Module:
        inner = inner.to(device())
        if not nested:
            return lane(inner, **kwargs)
        if lane is fsdp1:
            kwargs.setdefault("cast_forward_inputs", True)
        outer = Outer(lane(inner, **kwargs)).to(device())
        if lane is fsdp2:
            return fully_shard(outer)
        # So that it is the nested one that casts
        precision = MixedPrecision(cast_root_forward_inputs=False)
        return FSDP(
            outer, mixed_precision=precision, device_id=device(), use_orig_params=True
        )

    def trained(
        self, use: Callable[..., Any], make: Callable[[], Tuple[Any, ...]]
    ) -> Callable[[Callable, bool], None]:
        """Return a case that trains with what ``use`` makes of the inputs."""

        def case(lane: Callable, nested: bool) -> None:
            model = self.build(lane, nested, Inner(use))
            for _ in range(2):
                x = self.ones(requires_grad=True)
                out = model(x, *make())
                self.assertEqual(out.dtype, BF16)
                out.float().sum().backward()
                self.assertEqual(x.grad.dtype, FP32)
                self.assertGreater(x.grad.abs().sum().item(), 0)

        return case

    @needs_two_ranks
    def test_containers(self):
        """Each container arrives as what it is, with what is in it cast."""

        def packed_sequence(packed: PackedSequence) -> torch.Tensor:
            self.assertIs(type(packed), PackedSequence)
            self.assertEqual(packed.data.dtype, BF16)
            self.assertEqual(packed.batch_sizes.device.type, "cpu")
            return packed.data.sum()

        def default_dict(given: defaultdict) -> torch.Tensor:
            self.assertIs(type(given), defaultdict)
            given["log"].append(1)
            self.assertEqual(given["x"].dtype, BF16)
            return given["x"]

        def not_init(given: NotInit) -> torch.Tensor:
            self.assertEqual((given.x.dtype, given.twice.dtype), (BF16, BF16))
            return given.x + given.twice

        def has_x(given: Any) -> torch.Tensor:
            self.assertIn(type(given), (Frozen, Single))
            self.assertEqual(given.x.dtype, BF16)
            return given.x

        def mapping(given: UserDict) -> torch.Tensor:
            self.assertIs(type(given), UserDict)
            self.assertEqual(given["x"].dtype, BF16)
            return given["x"]

        def shared(first: torch.Tensor, given: List[torch.Tensor]) -> torch.Tensor:
            self.assertIs(given[0], first)
            return first

        def deep(given: Any) -> torch.Tensor:
            while not isinstance(given, torch.Tensor):
                (given,) = given
            self.assertEqual(given.dtype, BF16)
            return given

        def make_shared() -> Tuple[Any, ...]:
            x = self.ones(requires_grad=True)
            return x, [x]

        def make_deep(x: torch.Tensor) -> List[Any]:
            value: Any = x
            for _ in range(1000):
                value = [value]
            return value

        cases = {
            "PackedSequence": self.trained(
                packed_sequence,
                lambda: (pack_sequence([self.ones(), self.ones()[:1]]),),
            ),
            "shared": self.trained(shared, make_shared),
        }
        makers: Dict[str, Tuple[Callable[..., Any], Callable[..., Any]]] = {
            "defaultdict": (default_dict, lambda x: defaultdict(list, x=x)),
            "init=False": (not_init, NotInit),
            "frozen": (has_x, Frozen),
            "namedtuple": (has_x, Single),
            "mapping": (mapping, lambda x: UserDict(x=x)),
            "deep": (deep, make_deep),
        }

        def make(maker: Callable[..., Any], requires_grad: bool) -> Tuple[Any, ...]:
            return (maker(self.ones(requires_grad=requires_grad)),)

        for (name, (use, maker)), grad in itertools.product(
            makers.items(), (False, True)
        ):
            cases[f"{name}, requires_grad={grad}"] = self.trained(
                use, functools.partial(make, maker, grad)
            )
        self.in_every_lane(cases)

    @needs_two_ranks
    def test_nothing_to_cast(self):
        """What needs no cast arrives as the very same objects."""

        def log(lane: Callable, nested: bool) -> None:
            given: List[Any] = []
            model = self.build(lane, nested, Inner(lambda log: log.append(1) or 0))
            for _ in range(2):
                model(self.ones(requires_grad=True), given).float().sum().backward()
            self.assertEqual(given, [1, 1])

        def same_objects(lane: Callable, nested: bool) -> None:
            low = self.ones(BF16)
            given = {
                "low": low,
                "dtype": [torch.arange(2, device=device()), {"text": "text"}],
                "frozen": Frozen(low),
                "store": UserDict(a=low),
                "nothing": None,
                "nested": [[[{}]]],
            }
            seen: Dict[str, Any] = {}
            model = self.build(
                lane, nested, Inner(lambda **kwargs: seen.update(kwargs) or 0)
            )
            model(self.ones(requires_grad=True), **given).float().sum().backward()
            self.assertEqual(list(seen), list(given))
            for name, value in given.items():
                self.assertIs(seen[name], value, name)

        def no_arguments(lane: Callable, nested: bool) -> None:
            model = lane(Source().to(device()))
            out = model()
            self.assertEqual(out.dtype, BF16)
            out.float().sum().backward()

        self.in_every_lane(
            {"log": log, "same objects": same_objects, "no arguments": no_arguments}
        )

    @needs_two_ranks
    def test_what_cannot_be_made_anew(self):
        def error(lane: Callable, nested: bool) -> None:
            model = self.build(lane, nested, Inner(lambda given: 0))
            model(self.ones(), {"image": Failure(self.ones(BF16))})
            model = self.build(lane, nested, Inner(lambda given: 0))
            with self.assertRaisesRegex(
                TypeError, r"args\[1\]\['image'\] .*Failure.*cast_forward_inputs=False"
            ):
                model(self.ones(), {"image": Failure(self.ones())})

        def way_out(lane: Callable, nested: bool) -> None:
            seen: List[Any] = []
            flags = {"cast_forward_inputs": False}
            if lane is fsdp1:
                flags["cast_root_forward_inputs"] = False
            model = self.build(
                lane, nested, Inner(lambda given: seen.append(given) or 0), **flags
            )
            given = Failure(self.ones(requires_grad=True))
            with self.assertRaisesRegex(RuntimeError, "dtype"):
                model(self.ones(requires_grad=True), given)
            self.assertIs(seen[0], given)

        self.in_every_lane({"error": error, "way out": way_out})

    @needs_two_ranks
    def test_dtensor(self):
        """A ``DTensor`` is cast by its own ``to``, and stays one."""
        try:
            from torch.distributed.tensor import DTensor
        except ImportError:
            from torch.distributed._tensor import DTensor
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(device().type, (self.world_size,))
        given = DTensor.from_local(self.ones(), mesh)
        for value in (given, Single(given)):
            (new,), _ = _cast_inputs(BF16, (value,), {})
            new = new.x if type(new) is Single else new
            self.assertIs(type(new), DTensor)
            self.assertEqual(new.dtype, BF16)
            self.assertEqual(new.placements, given.placements)
        self.assertIs(_cast_inputs(FP32, (given,), {})[0][0], given)

    @needs_two_ranks
    def test_checkpoint(self):
        """What activation checkpointing runs again sees what the first run saw."""

        def case(lane: Callable, nested: bool) -> None:
            recorder = ForwardRecorder(Inner(lambda given: given.x * given.twice))
            model = self.build(lane, nested, checkpoint_wrapper(recorder))
            given = NotInit(self.ones(requires_grad=True))
            model(self.ones(requires_grad=True), given).float().sum().backward()
            first, again = recorder.records
            self.assertEqual(first.dtypes, again.dtypes)
            for record in (first, again):
                new = record.leaves["args[1]"]
                self.assertIs(type(new), NotInit)
                self.assertEqual((new.x.dtype, new.twice.dtype), (BF16, BF16))
            self.assertEqual(given.x.grad.dtype, FP32)

        self.in_every_lane({"checkpoint in FSDP": case})

    @needs_two_ranks
    def test_compile(self):
        """A compiled model computes what the eager one does."""

        def case(lane: Callable, nested: bool) -> None:
            def use(given: Dict[str, Any], low: torch.Tensor) -> torch.Tensor:
                return given["x"] + low

            model = self.build(lane, nested, Inner(use))
            inputs = (self.ones(), {"x": self.ones()}, self.ones(BF16))
            wanted = model(*inputs)
            torch._dynamo.reset()
            compiled = torch.compile(model, backend="aot_eager")
            self.assertEqual(compiled(*inputs), wanted)

        self.in_every_lane({"compile": case})


if __name__ == "__main__":
    run_tests()
