# Owner(s): ["oncall: distributed"]

import contextlib
import copy
import functools
import itertools
import os
import pickle
import re
import sys
import traceback
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple
from unittest import mock

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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    TestCase,
)
from torch.testing._internal.fsdp_forward_recorder import (
    ForwardRecord,
    ForwardRecorder,
)


ON_GPU = torch.cuda.is_available()
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
FP64 = torch.float64
DTYPE_ERROR = "mat1 and mat2 must have the same dtype"
DIM = 8


def needs_two_ranks(fn: Callable) -> Callable:
    """On the CPU the ranks are processes that use gloo, of which there are enough."""
    return skip_if_lt_x_gpu(2)(fn) if ON_GPU else fn


def mp(dtype: Optional[torch.dtype] = None, **kwargs: Any) -> MixedPrecision:
    # Reducing in fp32 makes the mean over the ranks the same as the reference's
    kwargs.setdefault("reduce_dtype", FP32)
    return MixedPrecision(param_dtype=dtype, **kwargs)


class Pair(nn.Module):
    """``c2`` after ``c1``; what ``c2`` takes besides goes through."""

    def __init__(self, c1: nn.Module, c2: nn.Module) -> None:
        super().__init__()
        self.c1 = c1
        self.c2 = c2

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.c2(self.c1(x), *args, **kwargs)


class Block(nn.Module):
    """Ignores all but its first argument."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, 2 * DIM)
        self.down = nn.Linear(2 * DIM, DIM)

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Wrap(NamedTuple):
    """How to wrap one module: its precision, and the checkpoint around or in it."""

    mixed_precision: Optional[MixedPrecision] = None
    checkpoint_outside: Optional[CheckpointImpl] = None
    checkpoint_inside: Optional[CheckpointImpl] = None


class Seen(NamedTuple):
    """The dtypes that the forwards of root, ``c1`` and ``c2`` see."""

    root: torch.dtype
    c1: torch.dtype
    c2: torch.dtype


NESTED_BF16 = Seen(FP32, FP32, BF16)


class NestedPrecisionTest(FSDPTest):
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

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.rank) if ON_GPU else torch.device("cpu")

    def run_cases(self, cases: Dict[str, Callable[[], None]]) -> None:
        """Run all cases in this one test and name each one that fails on any rank."""
        failures: Dict[str, str] = {}
        for name, case in cases.items():
            try:
                case()
            except Exception:
                failures[name] = traceback.format_exc()
            dist.barrier()
        gathered: List[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, failures)
        failed = sorted(set().union(*gathered))
        self.assertFalse(
            failed,
            f"failed cases: {failed}\n"
            + "\n".join(f"--- {name}\n{text}" for name, text in failures.items()),
        )

    def fsdp(self, module: nn.Module, precision=None, **kwargs: Any) -> FSDP:
        return FSDP(module, mixed_precision=precision, device_id=self.device, **kwargs)

    def wrap(self, module: nn.Module, wrap: Wrap, **kwargs: Any) -> nn.Module:
        if wrap.checkpoint_inside is not None:
            module = checkpoint_wrapper(module, wrap.checkpoint_inside)
        module = self.fsdp(module, wrap.mixed_precision, **kwargs)
        if wrap.checkpoint_outside is not None:
            module = checkpoint_wrapper(module, wrap.checkpoint_outside)
        return module

    def build(
        self,
        root: Optional[Wrap] = None,
        c1: Optional[Wrap] = None,
        c2: Optional[Wrap] = None,
        **kwargs: Any,
    ) -> Tuple[nn.Module, nn.Module]:
        """
        Return the sharded model and its unsharded original. A ``c1`` or ``c2``
        of ``None`` is not wrapped, that is, belongs to the root.
        """
        torch.manual_seed(0)
        original = Pair(Block(), Block()).to(self.device)
        wrapped = []
        for block, wrap in ((original.c1, c1), (original.c2, c2)):
            module: nn.Module = ForwardRecorder(copy.deepcopy(block))
            wrapped.append(
                module if wrap is None else self.wrap(module, wrap, **kwargs)
            )
        model = self.wrap(ForwardRecorder(Pair(*wrapped)), root or Wrap(), **kwargs)
        return model, original

    def records(self, model: nn.Module) -> Dict[str, List[ForwardRecord]]:
        recorders = [m for m in model.modules() if isinstance(m, ForwardRecorder)]
        return dict(zip(("root", "c1", "c2"), (r.records for r in recorders)))

    def forget_records(self, model: nn.Module) -> None:
        for records in self.records(model).values():
            records.clear()

    def clean_name(self, name: str) -> str:
        return re.sub(
            r"(_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.", "", name
        )

    def full_params(self, model: nn.Module) -> Dict[str, torch.Tensor]:
        with FSDP.summon_full_params(model, writeback=False):
            return {
                self.clean_name(name): param.detach().clone()
                for name, param in model.named_parameters()
            }

    def input(self, iteration: int = 0, requires_grad: bool = False) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * self.rank + iteration + 1)
        x = torch.randn(4, DIM, generator=generator).to(self.device)
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
        Train for two steps and compare with the model that casts by hand:
        dtypes seen, outputs, input gradients, and by the optimizer's step the
        gradient of each parameter.
        """
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
                close = {"rtol": tolerance, "atol": tolerance}
                self.assertEqual(out, ref_out, **close)
                self.assertEqual(x.grad.dtype, FP32)
                self.assertEqual(x.grad, ref_x.grad, **close)
            for name, records in self.records(model).items():
                self.assertGreaterEqual(len(records), step + 1, name)
                for record in records:
                    dtype = getattr(seen, name)
                    self.assertEqual(set(record.dtypes.values()), {dtype}, name)
                    self.assertLessEqual(set(record.param_dtypes.values()), {dtype})
            for param in model.parameters():
                if param.grad is not None:
                    self.assertEqual(param.grad.dtype, FP32)
            before = self.full_params(model)
            optim.step()
            optim.zero_grad()
            after = self.full_params(model)
            for name, ref_param in original.named_parameters():
                grad = ref_param.grad.clone()
                self.assertGreater(grad.abs().max().item(), 1e-3, name)
                dist.all_reduce(grad)
                grad /= self.world_size
                self.assertEqual(before[name] - after[name], grad, **close, msg=name)
                with torch.no_grad():
                    ref_param.copy_(after[name])

    def check_dtype_error(self, model: nn.Module) -> None:
        with self.assertRaisesRegex(RuntimeError, DTYPE_ERROR):
            model(self.input())


class TestFSDPNestedPrecision(NestedPrecisionTest):
    """``cast_forward_inputs=None``, the default."""

    @needs_two_ranks
    def test_nested_bf16(self):
        def run(use_orig: bool, strategy: ShardingStrategy, no_sync: bool) -> None:
            model, original = self.build(
                c2=Wrap(mp(BF16)), use_orig_params=use_orig, sharding_strategy=strategy
            )
            # Unsharded gradients accumulate in bf16
            tolerance = 5e-2 if no_sync else 1e-5
            self.check(model, original, NESTED_BF16, no_sync, tolerance)

        strategies = [
            ShardingStrategy.FULL_SHARD,
            ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.NO_SHARD,
        ]
        self.run_cases(
            {
                f"use_orig_params={use_orig}, {strategy.name}, no_sync={no_sync}": (
                    functools.partial(run, use_orig, strategy, no_sync)
                )
                for use_orig, strategy, no_sync in itertools.product(
                    (False, True), strategies, (False, True)
                )
            }
        )

    @needs_two_ranks
    def test_low_precision_root(self):
        def run(seen: Seen, **wraps: Wrap) -> None:
            model, original = self.build(root=Wrap(mp(BF16)), **wraps)
            self.check(model, original, seen)

        fp32_child = Seen(BF16, BF16, FP32)
        three = {"c1": Wrap(mp(FP16)), "c2": Wrap(mp(BF16))}
        self.run_cases(
            {
                "c2 without mixed precision": lambda: run(fp32_child, c2=Wrap()),
                "c2 without param_dtype": lambda: run(fp32_child, c2=Wrap(mp())),
                "c1 fp16, c2 bf16": lambda: run(Seen(BF16, FP16, BF16), **three),
            }
        )

    @needs_two_ranks
    def test_root(self):

        def root_without_parameters() -> None:
            model, original = self.build(c1=Wrap(mp(FP16)), c2=Wrap(mp(BF16)))
            self.assertIsNone(model._handle)
            self.check(model, original, Seen(FP32, FP16, BF16))

        def low_precision_input() -> None:
            model, original = self.build(c2=Wrap(mp(BF16)))
            x = self.input().to(BF16)
            out = model(x)
            ref = self.cast_by_hand(original, x, NESTED_BF16)
            self.assertEqual(out, ref, rtol=1e-5, atol=1e-5)
            self.assertEqual(self.records(model)["root"][0].dtypes, {"args[0]": FP32})

        def root_flag_off() -> None:
            off = mp(BF16, cast_root_forward_inputs=False)
            model, _ = self.build(root=Wrap(off), c2=Wrap(mp(FP16)))
            self.check_dtype_error(model)
            self.assertEqual(self.records(model)["root"][0].dtypes, {"args[0]": FP32})

        self.run_cases(
            {
                "root without parameters": root_without_parameters,
                "low precision input": low_precision_input,
                "cast_root_forward_inputs=False": root_flag_off,
            }
        )

    @needs_two_ranks
    def test_one_forward_dtype_casts_nothing(self):
        """What works without the default's casts goes on as it did."""

        def external_input_stays(root: MixedPrecision, c2: MixedPrecision) -> None:
            model, _ = self.build(root=Wrap(root), c2=Wrap(c2))
            low = torch.ones(DIM, device=self.device, dtype=FP16)
            # The root would cast what it is given, so `y` comes from within
            y = torch.ones(DIM, device=self.device)
            pair = model.module.module
            with mock.patch.object(
                pair, "forward", lambda x: pair.c2(pair.c1(x), y, low=low, dtype=FP64)
            ):
                out = model(self.input())
            out.float().sum().backward()
            (record,) = self.records(model)["c2"]
            # A name that what casts has an argument of too
            self.assertIs(record.leaves["kwargs['dtype']"], FP64)
            self.assertIs(record.leaves["args[1]"], y)
            self.assertIs(record.leaves["kwargs['low']"], low)

        def default_reduce_dtype() -> None:
            bf16 = MixedPrecision(param_dtype=BF16)
            model, original = self.build(root=Wrap(bf16), c2=Wrap(bf16))
            self.check(model, original, Seen(BF16, BF16, BF16), tolerance=5e-2)

        def batch_norm_in_full_precision(by_hand: bool) -> None:
            torch.manual_seed(0)
            norm: nn.Module = nn.BatchNorm1d(DIM)
            net = nn.Sequential(
                ForwardRecorder(nn.Linear(DIM, DIM)),
                self.fsdp(norm) if by_hand else norm,
                ForwardRecorder(nn.Linear(DIM, DIM)),
            )
            policy = None if by_hand else ModuleWrapPolicy({nn.Linear})
            model = self.fsdp(net, mp(BF16), auto_wrap_policy=policy)
            model(self.input()).float().sum().backward()
            for recorder in model.modules():
                if isinstance(recorder, ForwardRecorder):
                    self.assertEqual(recorder.records[0].dtypes, {"args[0]": BF16})

        self.run_cases(
            {
                "bf16": lambda: external_input_stays(mp(BF16), mp(BF16)),
                "no mixed precision": lambda: external_input_stays(None, None),
                "param_dtype as the parameters'": lambda: external_input_stays(
                    mp(FP32), mp()
                ),
                "default reduce_dtype": default_reduce_dtype,
                "batch norm of an auto wrap policy": lambda: (
                    batch_norm_in_full_precision(by_hand=False)
                ),
                "batch norm wrapped by hand": lambda: batch_norm_in_full_precision(
                    by_hand=True
                ),
            }
        )

    @needs_two_ranks
    def test_true_and_false(self):
        def nested_false() -> None:
            model, _ = self.build(c2=Wrap(mp(BF16, cast_forward_inputs=False)))
            self.check_dtype_error(model)
            self.assertEqual(self.records(model)["c2"][0].dtypes, {"args[0]": FP32})

        def nested_true() -> None:
            model, original = self.build(c2=Wrap(mp(BF16, cast_forward_inputs=True)))
            self.check(model, original, NESTED_BF16)

        def true_without_param_dtype() -> None:
            model, _ = self.build(
                root=Wrap(mp(BF16)), c2=Wrap(mp(None, cast_forward_inputs=True))
            )
            self.check_dtype_error(model)

        def root_true_overrules_root_flag() -> None:
            both = mp(BF16, cast_forward_inputs=True, cast_root_forward_inputs=False)
            c2 = Wrap(mp(FP16, cast_forward_inputs=True))
            model, original = self.build(root=Wrap(both), c2=c2)
            self.check(model, original, Seen(BF16, BF16, FP16))

        self.run_cases(
            {
                "False": nested_false,
                "True": nested_true,
                "True without param_dtype": true_without_param_dtype,
                "True at a root that does not cast": root_true_overrules_root_flag,
            }
        )

    @needs_two_ranks
    def test_structured_inputs(self):
        """Floating-point tensors are cast; the rest are the very same objects."""
        model, _ = self.build(c2=Wrap(mp(BF16)))
        given = {
            "floats": [self.input(1), (self.input(2), {"deep": self.input(3)})],
            "bf16": self.input(4).to(BF16),
            "fp64": self.input(5).double(),
            "ints": {"ids": torch.arange(3, device=self.device)},
            "mask": torch.ones(3, dtype=torch.bool, device=self.device),
            "complex": torch.ones(2, dtype=torch.complex64, device=self.device),
            "nothing": None,
            "text": "text",
            "number": 1.5,
            "object": object(),
            "dtype": FP64,
        }
        positional = [self.input(6), torch.arange(2, device=self.device), None]
        # From within the root, since the root casts what it is given
        pair = model.module.module
        with mock.patch.object(
            pair, "forward", lambda x: pair.c2(pair.c1(x), positional, **given)
        ):
            model(self.input()).float().sum().backward()
        (record,) = self.records(model)["c2"]
        cast = {
            "args[0]": None,
            "args[1][0]": positional[0],
            "kwargs['floats'][0]": given["floats"][0],
            "kwargs['floats'][1][0]": given["floats"][1][0],
            "kwargs['floats'][1][1]['deep']": given["floats"][1][1]["deep"],
            "kwargs['fp64']": given["fp64"],
        }
        same = {
            "args[1][1]": positional[1],
            "args[1][2]": None,
            "kwargs['ints']['ids']": given["ints"]["ids"],
        }
        for key in (
            "bf16",
            "mask",
            "complex",
            "nothing",
            "text",
            "number",
            "object",
            "dtype",
        ):
            same[f"kwargs[{key!r}]"] = given[key]
        self.assertEqual(set(record.leaves), {*cast, *same})
        for place, value in cast.items():
            self.assertEqual(record.leaves[place].dtype, BF16, place)
            if value is not None:
                self.assertEqual(record.leaves[place], value.to(BF16))
        for place, value in same.items():
            self.assertIs(record.leaves[place], value, place)

    @needs_two_ranks
    def test_gradient_of_the_uncast_input(self):
        """Inputs of a bf16 wrapper get fp32 gradients, trained or frozen."""

        def run(frozen: bool, keyword: bool) -> None:
            torch.manual_seed(0)
            linear = nn.Linear(DIM, DIM, device=self.device).requires_grad_(not frozen)

            class ByKeyword(nn.Module):
                def __init__(self, c2: nn.Module) -> None:
                    super().__init__()
                    self.c1 = nn.Linear(DIM, DIM)
                    self.c2 = c2

                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    return self.c2(input=x) if keyword else self.c2(x)

            c2 = self.fsdp(copy.deepcopy(linear), mp(BF16))
            model = self.fsdp(ByKeyword(c2))
            for _ in range(2):
                x = self.input(requires_grad=True)
                model(x).float().pow(2).sum().backward()
                ref_x = x.detach().clone().requires_grad_()
                out = F.linear(
                    ref_x.to(BF16), linear.weight.to(BF16), linear.bias.to(BF16)
                )
                out.float().pow(2).sum().backward()
                self.assertEqual(x.grad.dtype, FP32)
                self.assertEqual(x.grad, ref_x.grad)
                self.assertEqual(c2._handle.flat_param.grad is None, frozen)
                # Sharded again, so the hooks ran
                self.assertEqual(
                    c2._handle.flat_param.numel(), (DIM * DIM + DIM) // self.world_size
                )

        self.run_cases(
            {
                f"frozen={frozen}, keyword={keyword}": (
                    functools.partial(run, frozen, keyword)
                )
                for frozen, keyword in itertools.product((False, True), repeat=2)
            }
        )

    @needs_two_ranks
    def test_eval(self):
        def low_precision() -> None:
            model, original = self.build(c2=Wrap(mp(BF16)))
            model.eval()
            x = self.input()
            with torch.no_grad():
                out = model(x)
            self.assertEqual(out, self.cast_by_hand(original, x, NESTED_BF16))

        def full_precision() -> None:
            with mock.patch.dict(os.environ, {"FSDP_USE_FULL_PREC_IN_EVAL": "1"}):
                model, original = self.build(c2=Wrap(mp(BF16)))
            self.check(model, original, NESTED_BF16)
            self.forget_records(model)
            model.eval()
            x = self.input()
            with torch.no_grad():
                out = model(x)
                # Nothing is cast, not even an input in another precision
                with self.assertRaisesRegex(RuntimeError, DTYPE_ERROR):
                    model(x.to(BF16))
            self.assertEqual(
                out, self.cast_by_hand(original, x, Seen(FP32, FP32, FP32))
            )
            for records in self.records(model).values():
                self.assertEqual(records[0].dtypes, {"args[0]": FP32})

        def training_after_full_precision() -> None:
            with mock.patch.dict(os.environ, {"FSDP_USE_FULL_PREC_IN_EVAL": "1"}):
                model, original = self.build(c2=Wrap(mp(BF16)))
            model.eval()
            with torch.no_grad():
                model(self.input())
            self.forget_records(model)
            model.train()
            self.check(model, original, NESTED_BF16)

        self.run_cases(
            {
                "low precision": low_precision,
                "full precision": full_precision,
                "training after full precision": training_after_full_precision,
            }
        )

    @needs_two_ranks
    def test_shared_module_and_later_dtype(self):
        def called_twice() -> None:
            torch.manual_seed(0)
            linear = nn.Linear(DIM, DIM, device=self.device)
            head = nn.Linear(DIM, DIM, device=self.device)
            recorder = ForwardRecorder(copy.deepcopy(linear))
            shared = self.fsdp(recorder, mp(BF16))

            class Twice(nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.shared = shared
                    self.head = copy.deepcopy(head)

                def forward(self, x: torch.Tensor) -> torch.Tensor:
                    # A bf16 input needs no cast, an fp32 one does
                    return self.shared(self.head(self.shared(x).float()))

            model = self.fsdp(Twice())
            x = self.input(requires_grad=True)
            model(x).float().sum().backward()
            ref_x = x.detach().clone().requires_grad_()
            w, b = linear.weight.to(BF16), linear.bias.to(BF16)
            out = F.linear(head(F.linear(ref_x.to(BF16), w, b).float()).to(BF16), w, b)
            out.float().sum().backward()
            self.assertEqual(x.grad, ref_x.grad, rtol=1e-5, atol=1e-5)
            self.assertEqual(
                [r.dtypes["args[0]"] for r in recorder.records], [BF16] * 2
            )

        def parameters_changed_before_the_first_forward() -> None:
            model, _ = self.build(c2=Wrap())
            model.module.module.c2.to(BF16)
            out = model(self.input())
            self.assertEqual(out.dtype, BF16)
            self.assertEqual(self.records(model)["c2"][0].dtypes, {"args[0]": BF16})

        self.run_cases(
            {
                "called twice": called_twice,
                "to(bf16) after wrapping": parameters_changed_before_the_first_forward,
            }
        )


class TestFSDPNestedPrecisionCheckpoint(NestedPrecisionTest):
    """What activation checkpointing runs again sees what the first run saw."""

    def check_rerun(self, model: nn.Module, name: str = "c2") -> None:
        """The records of ``name`` come in pairs: the first run and its re-run."""
        records = self.records(model)[name]
        self.assertEqual(len(records), 4)
        for first, again in zip(records[::2], records[1::2]):
            self.assertEqual(list(first.leaves), list(again.leaves))
            self.assertEqual(first.dtypes, again.dtypes)
            self.assertEqual(first.param_dtypes, again.param_dtypes)
            for place, value in first.leaves.items():
                self.assertEqual(value, again.leaves[place], rtol=0, atol=0)

    @needs_two_ranks
    @parametrize("impl_name", [impl.name for impl in CheckpointImpl])
    @parametrize("cast_forward_inputs", ["default", "True"])
    def test_checkpoint(self, impl_name: str, cast_forward_inputs: str):
        impl = CheckpointImpl[impl_name]
        precision = mp(BF16)
        if cast_forward_inputs == "True":
            precision = replace(precision, cast_forward_inputs=True)

        def run(use_orig_params: bool, **where: CheckpointImpl) -> None:
            model, original = self.build(
                c2=Wrap(precision, **where), use_orig_params=use_orig_params
            )
            self.check(model, original, NESTED_BF16)
            self.check_rerun(model)

        def around_the_root() -> None:
            model, original = self.build(
                root=Wrap(checkpoint_outside=impl), c2=Wrap(precision)
            )
            self.check(model, original, NESTED_BF16)
            for name in ("root", "c1", "c2"):
                self.check_rerun(model, name)

        def keywords() -> None:
            model, _ = self.build(c2=Wrap(precision, checkpoint_outside=impl))
            pair = model.module.module
            y, ids = (
                self.input(7, requires_grad=True),
                torch.arange(3, device=self.device),
            )
            with mock.patch.object(
                pair, "forward", lambda x: pair.c2(pair.c1(x), y=y, ids=ids)
            ):
                for _ in range(2):
                    model(self.input()).float().sum().backward()
            self.check_rerun(model)
            for record in self.records(model)["c2"]:
                self.assertEqual(record.dtypes["kwargs['y']"], BF16)
                self.assertEqual(record.dtypes["kwargs['ids']"], torch.int64)

        self.run_cases(
            {
                "around FSDP": lambda: run(False, checkpoint_outside=impl),
                "around FSDP, use_orig_params": lambda: run(
                    True, checkpoint_outside=impl
                ),
                "in FSDP": lambda: run(False, checkpoint_inside=impl),
                "in FSDP, use_orig_params": lambda: run(True, checkpoint_inside=impl),
                "around the root": around_the_root,
                "keyword arguments": keywords,
            }
        )

    @needs_two_ranks
    def test_checkpoint_in_full_precision_eval(self):
        """The re-run does not cast where the first run did not."""
        with mock.patch.dict(os.environ, {"FSDP_USE_FULL_PREC_IN_EVAL": "1"}):
            model, _ = self.build(
                c2=Wrap(
                    mp(BF16, cast_forward_inputs=True),
                    checkpoint_outside=CheckpointImpl.NO_REENTRANT,
                )
            )
        model.eval()
        x = self.input()
        for _ in range(2):
            model(x).sum().backward()
        self.check_rerun(model)
        self.assertEqual(self.records(model)["c2"][0].dtypes, {"args[0]": FP32})


class TestNestedPrecisionUnits(TestCase):
    def test_field(self):
        self.assertIsNone(MixedPrecision().cast_forward_inputs)
        explicit = MixedPrecision(cast_forward_inputs=True)
        self.assertNotEqual(explicit, MixedPrecision())
        self.assertEqual(replace(explicit, cast_forward_inputs=None), MixedPrecision())
        self.assertEqual(pickle.loads(pickle.dumps(explicit)), explicit)

    def test_handles_that_disagree(self):
        from torch.distributed.fsdp._forward_dtype import _get_forward_dtype

        handles = {
            name: SimpleNamespace(_fwd_bwd_param_dtype=dtype)
            for name, dtype in (("a", BF16), ("b", FP32))
        }
        state = SimpleNamespace(_fully_sharded_module_to_handle=handles)
        with self.assertRaisesRegex(
            AssertionError, r"one forward dtype.*torch\.bfloat16.*torch\.float32"
        ):
            _get_forward_dtype(state)
        del handles["b"]
        self.assertEqual(_get_forward_dtype(state), BF16)
        handles.clear()
        self.assertIsNone(_get_forward_dtype(state))


instantiate_parametrized_tests(TestFSDPNestedPrecisionCheckpoint)

if __name__ == "__main__":
    run_tests()
