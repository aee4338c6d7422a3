# Owner(s): ["oncall: distributed"]

import collections
import contextlib
import copy
import itertools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
    CheckpointImpl,
)
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp._default_input_dtype import _init_default_input_dtypes
from torch.distributed.fsdp._input_dtype import _get_low_precision_dtype
from torch.distributed.fsdp.wrap import always_wrap_policy
from torch.nn.utils.rnn import pack_sequence
from torch.testing._internal.common_distributed import (
    ForwardRecord,
    ForwardRecorder,
    skip_if_lt_x_gpu,
)
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.common_utils import run_tests, TestCase


FP64, FP32, BF16 = torch.float64, torch.float32, torch.bfloat16
# As a matrix product, with or without bias, puts it in one version or another
DTYPE_ERROR = "same dtype|expected scalar type|expected m1 and m2|must match"
DIM = 8


def mp(dtype: Optional[torch.dtype] = None, **kwargs: Any) -> MixedPrecision:
    # Reducing in fp32 makes the mean over the ranks the same as the reference's
    return MixedPrecision(param_dtype=dtype, reduce_dtype=FP32, **kwargs)


class Block(nn.Module):
    """Ignores all but its first argument."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Pair(nn.Module):
    """``c2`` after ``c1``; what is in ``extra`` goes to ``c2`` besides."""

    def __init__(self, c1: nn.Module, c2: nn.Module) -> None:
        super().__init__()
        self.c1 = c1
        self.c2 = c2
        self.extra: Tuple[Tuple[Any, ...], Dict[str, Any]] = ((), {})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        args, kwargs = self.extra
        return self.c2(self.c1(x), *args, **kwargs)


@dataclass(frozen=True)
class Frozen:
    x: Any


class Seen(NamedTuple):
    """The dtypes that the forwards of root, ``c1`` and ``c2`` see."""

    root: torch.dtype
    c1: torch.dtype
    c2: torch.dtype


NESTED_BF16 = Seen(FP32, FP32, BF16)


class TestFSDPForwardInputs(FSDPTest):
    @property
    def world_size(self) -> int:
        return 2

    def build(
        self,
        root: Optional[MixedPrecision] = None,
        checkpoint_outside: Optional[CheckpointImpl] = None,
        checkpoint_inside: Optional[CheckpointImpl] = None,
        sharding_strategy: Optional[ShardingStrategy] = None,
        **nested: Optional[MixedPrecision],
    ) -> Tuple[FSDP, nn.Module]:
        """
        Return the sharded model and its unsharded original. Each of ``nested``
        is wrapped on its own, the others belong to the root. The checkpoints go
        around the wrapper of ``c2``, or into it.
        """
        torch.manual_seed(0)
        original = Pair(Block(), Block()).cuda(self.rank)
        wrapped: List[nn.Module] = []
        for name in ("c1", "c2"):
            module: nn.Module = ForwardRecorder(copy.deepcopy(getattr(original, name)))
            if name == "c2" and checkpoint_inside is not None:
                module = checkpoint_wrapper(module, checkpoint_inside)
            if name in nested:
                module = FSDP(
                    module,
                    mixed_precision=nested[name],
                    sharding_strategy=sharding_strategy,
                )
            if name == "c2" and checkpoint_outside is not None:
                module = checkpoint_wrapper(module, checkpoint_outside)
            wrapped.append(module)
        model = FSDP(
            ForwardRecorder(Pair(*wrapped)),
            mixed_precision=root,
            sharding_strategy=sharding_strategy,
        )
        return model, original

    def recorders(self, model: nn.Module) -> Dict[str, ForwardRecorder]:
        found = [m for m in model.modules() if isinstance(m, ForwardRecorder)]
        return dict(zip(("root", "c1", "c2"), found))

    def pair(self, model: nn.Module) -> Pair:
        return self.recorders(model)["root"].module

    def received(self, model: nn.Module, name: str = "c2") -> ForwardRecord:
        (record,) = self.recorders(model)[name].records
        return record

    def full_params(self, model: nn.Module) -> List[torch.Tensor]:
        with FSDP.summon_full_params(model, writeback=False):
            # Both the original's and the wrapped model's blocks come in this order
            recorders = self.recorders(model)
            return [
                param.detach().clone()
                for name in ("c1", "c2")
                for linear in (recorders[name].module.up, recorders[name].module.down)
                for param in (linear.weight, linear.bias)
            ]

    def input(self, step: int = 0, requires_grad: bool = False) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * self.rank + step + 1)
        x = torch.randn(4, DIM, generator=generator).cuda(self.rank)
        return x.requires_grad_(requires_grad)

    def cast_by_hand(
        self, original: nn.Module, x: torch.Tensor, seen: Seen
    ) -> torch.Tensor:
        x = x.to(seen.root)
        for block, dtype in ((original.c1, seen.c1), (original.c2, seen.c2)):
            x = x.to(dtype)
            for linear in (block.up, block.down):
                x = F.linear(x, linear.weight.to(dtype), linear.bias.to(dtype))
                x = F.gelu(x) if linear is block.up else x
        return x

    def check(
        self,
        model: nn.Module,
        original: nn.Module,
        seen: Seen,
        no_sync: bool = False,
        tolerance: float = 1e-5,
    ) -> None:
        """
        Train for two steps and compare with the model that casts by hand: the
        dtypes seen, outputs, input gradients, and by the optimizer's step the
        gradient of each parameter.
        """
        close = {"rtol": tolerance, "atol": tolerance}
        optim = torch.optim.SGD(model.parameters(), lr=1.0)
        for step in range(2):
            original.zero_grad()
            for micro_step in range(2 if no_sync else 1):
                first = no_sync and micro_step == 0
                x = self.input(2 * step + micro_step, requires_grad=True)
                ref_x = x.detach().clone().requires_grad_()
                with model.no_sync() if first else contextlib.nullcontext():
                    out = model(x)
                    self.assertEqual(out.dtype, seen.c2)
                    out.float().pow(2).sum().backward()
                ref_out = self.cast_by_hand(original, ref_x, seen)
                ref_out.float().pow(2).sum().backward()
                self.assertEqual(out, ref_out, **close)
                self.assertEqual(x.grad.dtype, FP32)
                self.assertEqual(x.grad, ref_x.grad, **close)
            for name, recorder in self.recorders(model).items():
                self.assertGreaterEqual(len(recorder.records), step + 1, name)
                for record in recorder.records:
                    dtype = getattr(seen, name)
                    self.assertEqual(set(record.dtypes.values()), {dtype}, name)
            for param in model.parameters():
                self.assertEqual(param.grad.dtype, FP32)
            before = self.full_params(model)
            optim.step()
            optim.zero_grad()
            after = self.full_params(model)
            for old, new, ref_param in zip(before, after, original.parameters()):
                grad = ref_param.grad.clone()
                self.assertGreater(grad.abs().max().item(), 1e-3)
                dist.all_reduce(grad)
                grad /= self.world_size
                self.assertEqual(old - new, grad, **close)
                with torch.no_grad():
                    ref_param.copy_(new)

    def check_dtype_error(self, model: nn.Module) -> None:
        with self.assertRaisesRegex(RuntimeError, DTYPE_ERROR):
            model(self.input())

    @skip_if_lt_x_gpu(2)
    def test_nested_bf16(self):
        strategies = (
            ShardingStrategy.FULL_SHARD,
            ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.NO_SHARD,
        )
        for strategy, no_sync in itertools.product(strategies, (False, True)):
            with self.subTest(strategy=strategy, no_sync=no_sync):
                model, original = self.build(c2=mp(BF16), sharding_strategy=strategy)
                # Unsharded gradients accumulate in bf16
                tolerance = 5e-2 if no_sync else 1e-5
                self.check(model, original, NESTED_BF16, no_sync, tolerance)

    @skip_if_lt_x_gpu(2)
    def test_low_precision_root(self):
        for precision in (None, mp()):
            with self.subTest(c2=precision):
                model, original = self.build(root=mp(BF16), c2=precision)
                self.check(model, original, Seen(BF16, BF16, FP32))
        model, original = self.build(root=mp(BF16), c1=mp(FP64), c2=mp(BF16))
        self.check(model, original, Seen(BF16, FP64, BF16))

    @skip_if_lt_x_gpu(2)
    def test_root_without_parameters(self):
        model, original = self.build(c1=mp(FP64), c2=mp(BF16))
        self.assertEqual(model._handles, [])
        self.check(model, original, Seen(FP32, FP64, BF16))

    @skip_if_lt_x_gpu(2)
    def test_one_forward_dtype_casts_nothing_but_at_the_root(self):
        for root, c2 in (
            (mp(BF16), mp(BF16)),
            (None, None),
            (mp(FP32), mp()),
        ):
            with self.subTest(root=root, c2=c2):
                model, _ = self.build(root=root, c2=c2)
                # The root would cast what it is given, so these come from within
                y, low = self.input(7), self.input(8).to(BF16)
                self.pair(model).extra = ((y,), {"low": low})
                model(self.input()).float().sum().backward()
                record = self.received(model)
                self.assertIs(record.leaves["args[1]"], y)
                self.assertIs(record.leaves["kwargs['low']"], low)

    @skip_if_lt_x_gpu(2)
    def test_true_and_false(self):
        model, _ = self.build(c2=mp(BF16, cast_forward_inputs=False))
        self.check_dtype_error(model)
        self.assertEqual(self.received(model).dtypes, {"args[0]": FP32})

        model, original = self.build(c2=mp(BF16, cast_forward_inputs=True))
        self.check(model, original, NESTED_BF16)

        # True casts to param_dtype, of which there is none here
        model, _ = self.build(root=mp(BF16), c2=mp(None, cast_forward_inputs=True))
        self.check_dtype_error(model)

        # True casts where the wrappers agree, too
        model, _ = self.build(
            root=mp(BF16, cast_forward_inputs=False),
            c2=mp(BF16, cast_forward_inputs=True),
        )
        self.pair(model).extra = ((self.input(7),), {})
        model(self.input())
        self.assertEqual(self.received(model).dtypes["args[1]"], BF16)
        self.assertEqual(self.received(model, "root").dtypes, {"args[0]": BF16})

        model, _ = self.build(root=mp(BF16, cast_root_forward_inputs=False))
        self.check_dtype_error(model)
        self.assertEqual(self.received(model, "root").dtypes, {"args[0]": FP32})

    @skip_if_lt_x_gpu(2)
    def test_arguments_of_all_kinds(self):
        model, _ = self.build(c2=mp(BF16))
        marker = object()
        rest = {
            "low": self.input().to(BF16),
            "ids": torch.arange(3),
            "mask": torch.ones(3, dtype=torch.bool),
            "none": None,
            "text": "text",
            "marker": marker,
            # Names that a helper's own parameters might have
            "dtype": FP64,
            "device": "meta",
            "input_dtype": 1,
        }
        y, z = self.input(7, requires_grad=True), self.input(8)
        self.pair(model).extra = (([y], {"z": (z, 2)}), rest)
        out = model(self.input())
        record = self.received(model)
        self.assertEqual(record.leaves["args[1][0]"], y.to(BF16))
        self.assertEqual(record.leaves["args[2]['z'][0]"], z.to(BF16))
        self.assertEqual(record.leaves["args[2]['z'][1]"], 2)
        for name, value in rest.items():
            self.assertIs(record.leaves[f"kwargs[{name!r}]"], value)
        # What was cast hangs on what was given
        (grad,) = torch.autograd.grad(record.leaves["args[1][0]"].sum(), y)
        self.assertEqual(grad, torch.ones_like(y))
        out.float().sum().backward()

    @skip_if_lt_x_gpu(2)
    def test_containers(self):
        """What holds something to cast is made anew, all else is the same object."""

        def run(root: Optional[MixedPrecision], nested: Optional[MixedPrecision]):
            model, _ = self.build(root=root, c2=nested)
            other = BF16 if root is None else FP32
            block = self.recorders(model)["c2"].module
            forward, received = block.forward, []

            def keep(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
                received.append((args, kwargs))
                kwargs["log"].append("seen")
                return forward(x)

            block.forward = keep
            y = self.input(7).to(FP32 if root is None else BF16)
            given = (
                collections.defaultdict(list, x=y),
                Frozen(y),
                collections.UserDict(x=y),
                pack_sequence([y]),
            )
            settled = {"log": [], "frozen": Frozen(y.to(other)), "ids": (1, None)}
            self.pair(model).extra = (given, settled)
            model(self.input()).float().sum().backward()
            ((args, kwargs),) = received
            for new, old in zip(args, given):
                self.assertIs(type(new), type(old))
            self.assertEqual(args[0]["x"], y.to(other))
            self.assertIs(args[0].default_factory, list)
            self.assertIs(args[1].x, args[0]["x"])
            self.assertIs(args[2]["x"], args[0]["x"])
            self.assertEqual(args[3].data.dtype, other)
            for name, value in settled.items():
                self.assertIs(kwargs[name], value)
            self.assertEqual(settled["log"], ["seen"])

        for root, nested in ((None, mp(BF16)), (mp(BF16), None)):
            with self.subTest(root=root):
                run(root, nested)

    @skip_if_lt_x_gpu(2)
    def test_forward_without_arguments(self):
        class Source(nn.Module):
            def __init__(self, inner: Optional[nn.Module] = None) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(DIM))
                self.inner = inner

            def forward(self) -> torch.Tensor:
                return self.weight * (2 if self.inner is None else self.inner())

        for root, nested in ((None, mp(BF16)), (mp(BF16), mp(BF16))):
            with self.subTest(root=root):
                inner = FSDP(Source().cuda(self.rank), mixed_precision=nested)
                model = FSDP(Source(inner).cuda(self.rank), mixed_precision=root)
                out = model()
                out.float().sum().backward()
                self.assertEqual(out, torch.full_like(out, 2))

    @skip_if_lt_x_gpu(2)
    def test_checkpoint(self):
        """
        Around a wrapper, a checkpoint that is not re-entrant does not work in
        any precision, since the wrapper frees what it recomputed.
        """
        for where in (
            {"checkpoint_outside": CheckpointImpl.REENTRANT},
            {"checkpoint_inside": CheckpointImpl.REENTRANT},
            {"checkpoint_inside": CheckpointImpl.NO_REENTRANT},
        ):
            with self.subTest(**where):
                model, original = self.build(c2=mp(BF16), **where)
                self.check(model, original, NESTED_BF16)
                records = self.recorders(model)["c2"].records
                self.assertEqual(len(records), 4)
                for first, again in zip(records[::2], records[1::2]):
                    self.assertEqual(first.dtypes, again.dtypes)
                    self.assertEqual(first.leaves, again.leaves, rtol=0, atol=0)

    @skip_if_lt_x_gpu(2)
    def test_batch_norm_in_full_precision(self):
        """It works between low-precision layers, and goes on to do so."""

        def net() -> nn.Module:
            torch.manual_seed(0)
            layers = [nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM), nn.Linear(DIM, DIM)]
            return nn.Sequential(*layers).cuda(self.rank)

        by_policy = FSDP(
            net(), mixed_precision=mp(BF16), auto_wrap_policy=always_wrap_policy
        )
        by_hand = net()
        by_hand[1] = FSDP(by_hand[1])
        by_hand = FSDP(by_hand, mixed_precision=mp(BF16))
        for model in (by_policy, by_hand):
            out = model(self.input())
            self.assertEqual(out.dtype, BF16)
            out.float().sum().backward()

    @skip_if_lt_x_gpu(2)
    def test_eval_and_called_twice(self):
        model, original = self.build(c2=mp(BF16))
        model.eval()
        for step in range(2):
            x = self.input(step)
            with torch.no_grad():
                out = model(x)
                self.assertEqual(out, self.cast_by_hand(original, x, NESTED_BF16))
        for record in self.recorders(model)["c2"].records:
            self.assertEqual(record.dtypes, {"args[0]": BF16})


def fake_state(*handles: Tuple[Optional[torch.dtype], torch.dtype]) -> SimpleNamespace:
    """A state with handles of these low-precision dtypes and parameter dtypes."""
    return SimpleNamespace(
        _is_root=False,
        mixed_precision=mp(BF16),
        _handles=[
            SimpleNamespace(
                _config=SimpleNamespace(low_prec_param_dtype=low),
                flat_param=torch.empty(0, dtype=dtype),
            )
            for low, dtype in handles
        ],
    )


class TestForwardInputsUnits(TestCase):
    def test_fields(self):
        self.assertIsNone(MixedPrecision().cast_forward_inputs)
        self.assertIs(MixedPrecision().cast_root_forward_inputs, True)

    def test_handles_that_disagree(self):
        state = fake_state((BF16, FP32), (None, FP32))
        with self.assertRaisesRegex(
            AssertionError, r"one low-precision dtype.*None.*torch\.bfloat16"
        ):
            _get_low_precision_dtype(state, state._handles)

    def test_no_handles(self):
        state = fake_state()
        self.assertIsNone(_get_low_precision_dtype(state, []))
        state._is_root = True
        self.assertEqual(_get_low_precision_dtype(state, []), BF16)

    def test_decision(self):
        agree = [SimpleNamespace(**vars(fake_state((BF16, FP32)))) for _ in range(2)]
        differ = [*agree, fake_state((None, FP32)), fake_state()]
        for states, dtypes in (
            (agree, [None, None]),
            (differ, [BF16, BF16, FP32, None]),
        ):
            hashable = [_ByIdentity(state) for state in states]
            _init_default_input_dtypes(hashable[0], hashable)
            self.assertEqual([s._default_input_dtype for s in hashable], dtypes)


class _ByIdentity:
    """A fake state that can be a key, as real ones can."""

    def __init__(self, state: SimpleNamespace) -> None:
        vars(self).update(vars(state))


if __name__ == "__main__":
    run_tests()
