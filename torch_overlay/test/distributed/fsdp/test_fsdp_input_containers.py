# Owner(s): ["oncall: distributed"]

import copy
import gc
import sys
import weakref
from collections import (
    ChainMap,
    Counter,
    defaultdict,
    deque,
    namedtuple,
    OrderedDict,
    UserDict,
)
from collections.abc import Mapping
from dataclasses import dataclass, field, InitVar, make_dataclass
from types import MappingProxyType
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import torch
import torch.distributed.utils
import torch.nn as nn
import torch.utils._pytree as pytree
from torch.distributed.fsdp._forward_inputs import (
    _cast_inputs,
    _move_inputs,
    _replace_grad_inputs,
)
from torch.nn.utils.rnn import pack_sequence, PackedSequence
from torch.testing._internal.common_utils import run_tests, TestCase
from torch.utils.checkpoint import checkpoint


FP32, BF16 = torch.float32, torch.bfloat16
register_pytree_node = getattr(
    pytree, "register_pytree_node", getattr(pytree, "_register_pytree_node", None)
)


class Point(NamedTuple):
    x: Any
    y: Any = None


class Checked(namedtuple("Checked", "x y")):
    """Counts the calls of its constructor, and has attributes."""

    made = 0

    def __new__(cls, x: Any, y: Any) -> "Checked":
        cls.made += 1
        return super().__new__(cls, x, y)


class Labelled(list):
    """A list that must be told its label."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label

    def append(self, value: Any) -> None:
        raise AssertionError("not to be called")

    __iter__ = extend = append  # type: ignore[assignment]


class SetItemFails(dict):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("not to be called")

    update = values = items = __setitem__  # type: ignore[assignment]


class Output(OrderedDict):
    """As some libraries have it: fields that are the items too."""

    logits: Any


@dataclass
class Plain:
    x: Any
    y: Any = None


@dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any = None


@dataclass
class NotInit:
    x: Any
    twice: Any = field(init=False)
    start: InitVar[int] = 3

    made = 0

    def __post_init__(self, start: int) -> None:
        type(self).made += 1
        self.twice = self.x * 2
        self.note = start


class Slotted:
    __slots__ = ("__dict__", "x")


@dataclass
class SlottedFields(Slotted):
    x: Any
    y: Any


@dataclass
class OnException(Exception):
    mask: Any


class Store(Mapping):
    """A mapping that keeps its values as it likes."""

    def __init__(self, values: Dict[str, Any]) -> None:
        self.names = tuple(values)
        self.kept = [list(values.values())]
        self.scale = torch.ones(1)

    def __getitem__(self, key: str) -> Any:
        return self.kept[0][self.names.index(key)]

    def __iter__(self) -> Any:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Computed(Store):
    """A mapping that has its values nowhere."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) * 2


class Unknown:
    def __init__(self, x: Any) -> None:
        self.x = x


class Registered:
    def __init__(self, x: Any, tag: str) -> None:
        self.x = x
        self.tag = tag


register_pytree_node(
    Registered,
    lambda r: ([r.x], r.tag),
    lambda values, tag: Registered(next(iter(values)), tag),
)


class InputTest(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.x = torch.ones(2, requires_grad=True)
        self.low = torch.ones(2, dtype=BF16)
        self.ids = torch.arange(2)

    def cast(self, value: Any) -> Any:
        """Cast ``value`` as an argument and as a keyword argument."""
        kwargs = {"value": value}
        (new,), _ = _cast_inputs(BF16, (value,), {})
        args, new_kwargs = _cast_inputs(BF16, (), kwargs)
        self.assertEqual(args, ())
        self.assertIs(type(new_kwargs["value"]), type(new))
        self.assertIs(kwargs["value"], value)
        if new is value:
            self.assertIs(new_kwargs, kwargs)
        return new

    def check_cast(self, tensor: torch.Tensor) -> None:
        self.assertEqual(tensor.dtype, BF16)
        self.assertEqual(tensor, self.x.to(BF16))
        # By autograd, so that the input's gradient keeps its dtype
        (grad,) = torch.autograd.grad(tensor.sum(), self.x, retain_graph=True)
        self.assertEqual(grad.dtype, FP32)


class TestCastInputs(InputTest):
    def test_nothing_to_cast(self):
        """Everything comes back as the very same object."""
        cyclic: List[Any] = [self.low]
        cyclic.append(cyclic)
        values: List[Any] = [
            *(
                None,
                True,
                1,
                2.0,
                3j,
                "text",
                b"bytes",
                FP32,
                object(),
                Unknown(self.x),
            ),
            *(self.low, self.ids, nn.Parameter(self.low), torch.ones(1, dtype=bool)),
            *(
                [self.low],
                (self.ids,),
                {"a": [self.low]},
                {self.low},
                {"a"},
                [],
                {},
                (),
            ),
            *(Point(self.low), Plain(self.low), Frozen(self.ids), NotInit(self.low)),
            *(OrderedDict(a=self.low), defaultdict(list, a=self.low), Counter("ab")),
            *(UserDict(a=self.low), Store({"a": self.low}), Computed({"a": self.ids})),
            *(
                pack_sequence([self.low]),
                Registered(self.low, "tag"),
                deque([self.low]),
            ),
            *(OnException(self.low), cyclic, nn.Linear(1, 1), Plain, iter([self.x])),
        ]
        for value in values:
            self.assertIs(self.cast(value), value)
        args, kwargs = tuple(values), dict(enumerate(values))
        new_args, new_kwargs = _cast_inputs(BF16, args, kwargs)
        self.assertIs(new_args, args)
        self.assertIs(new_kwargs, kwargs)

    def test_no_dtype(self):
        args, kwargs = (self.x,), {"a": self.x}
        new_args, new_kwargs = _cast_inputs(None, args, kwargs)
        self.assertIs(new_args, args)
        self.assertIs(new_kwargs, kwargs)

    def test_tensor(self):
        self.check_cast(self.cast(self.x))
        self.check_cast(_cast_inputs(BF16, (), {"dtype": self.x})[1]["dtype"])

    def test_builtin_containers(self):
        settled = [self.low]
        given = {"a": [self.x, (1, {"b": self.x}), settled], "c": self.ids}
        before = copy.copy(given["a"])
        new = self.cast(given)
        self.assertEqual(list(new), ["a", "c"])
        self.check_cast(new["a"][0])
        self.assertIs(type(new["a"][1]), tuple)
        self.assertIs(new["a"][1][1]["b"], new["a"][0])
        self.assertIs(new["a"][2], settled)
        self.assertIs(new["c"], self.ids)
        # The caller's are as they were
        self.assertIsNot(new["a"], given["a"])
        self.assertTrue(all(a is b for a, b in zip(given["a"], before)))
        self.assertIs(given["a"][1][1]["b"], self.x)

        (new_set,) = [self.cast({self.x, self.low})]
        self.assertIs(type(new_set), set)
        self.assertIn(self.low, new_set)
        (other,) = new_set - {self.low}
        self.check_cast(other)

    def test_tuples(self):
        new = self.cast(Point(self.x, self.ids))
        self.assertIs(type(new), Point)
        self.check_cast(new.x)
        self.assertIs(new.y, self.ids)

        given = Checked(self.x, 1)
        given.note = "note"
        made = Checked.made
        new = self.cast(given)
        self.assertIs(type(new), Checked)
        self.check_cast(new.x)
        self.assertEqual(new.note, "note")
        self.assertEqual(Checked.made, made)

        result = torch.max(torch.ones(2, 2), dim=0)
        new = self.cast(result)
        self.assertIs(type(new), type(result))
        self.assertEqual(new.values.dtype, BF16)
        self.assertIs(new.indices, result.indices)

    def test_packed_sequence(self):
        given = pack_sequence(
            [torch.ones(1, 4), torch.ones(3, 4)], enforce_sorted=False
        )
        new = self.cast(given)
        self.assertIs(type(new), PackedSequence)
        self.assertEqual(new.data, given.data.to(BF16))
        for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            self.assertIs(getattr(new, name), getattr(given, name))
        self.assertEqual(given.data.dtype, FP32)

    def test_list_and_dict_subclasses(self):
        given = Labelled("label")
        list.extend(given, [self.x, 1])
        new = self.cast(given)
        self.assertIs(type(new), Labelled)
        self.assertEqual(new.label, "label")
        self.check_cast(list.__getitem__(new, 0))
        self.assertEqual(len(new), 2)

        fails = SetItemFails()
        dict.__setitem__(fails, "a", self.x)
        new = self.cast(fails)
        self.assertIs(type(new), SetItemFails)
        self.check_cast(new["a"])

        counter: Counter = Counter({"a": self.x})
        new = self.cast(counter)
        self.assertIs(type(new), Counter)
        self.check_cast(new["a"])
        self.assertEqual(new["missing"], 0)

    def test_ordered_dict(self):
        given = OrderedDict(a=self.x, b=1, c=self.x)
        given.move_to_end("a")
        new = self.cast(given)
        self.assertIs(type(new), OrderedDict)
        self.assertEqual(list(new), ["b", "c", "a"])
        self.assertIs(new["a"], new["c"])
        new.move_to_end("b")
        self.assertEqual(list(new), ["c", "a", "b"])

    def test_defaultdict(self):
        given = defaultdict(list, a=self.x)
        new = self.cast(given)
        self.assertIs(type(new), defaultdict)
        self.assertIs(new.default_factory, list)
        self.check_cast(new["a"])
        new["b"].append(1)
        self.assertEqual(list(given), ["a"])

    def test_items_that_are_fields_too(self):
        given = dataclass(Output)(logits=self.x)
        given["logits"] = given.logits
        new = self.cast(given)
        self.assertIs(type(new), type(given))
        self.check_cast(new["logits"])
        self.assertIs(new.logits, new["logits"])
        self.assertIs(given.logits, self.x)

    def test_dataclasses(self):
        for cls in (Plain, Frozen, SlottedFields):
            given = cls(self.x, self.ids)
            object.__setattr__(given, "note", "note")
            new = self.cast(given)
            self.assertIs(type(new), cls)
            self.check_cast(new.x)
            self.assertIs(new.y, self.ids)
            self.assertEqual(new.note, "note")
            self.assertIs(given.x, self.x)

    def test_dataclass_that_is_not_made_by_init(self):
        given = NotInit(self.x)
        made = NotInit.made
        new = self.cast(given)
        self.assertIs(type(new), NotInit)
        self.check_cast(new.x)
        self.assertEqual(new.twice, (self.x * 2).to(BF16))
        self.assertEqual(new.note, 3)
        self.assertEqual(NotInit.made, made)
        # A field that was never set stays so
        del given.twice
        self.assertFalse(hasattr(self.cast(given), "twice"))

    def test_dataclass_with_slots(self):
        class Mangled:
            __slots__ = ("__hidden",)

        new_in_3_10 = {"slots": True} if sys.version_info >= (3, 10) else {}
        cls = make_dataclass(
            "Fields", ["x", "y"], bases=(Mangled,), frozen=True, **new_in_3_10
        )
        given = cls(self.x, self.ids)
        object.__setattr__(given, "_Mangled__hidden", "hidden")
        new = self.cast(given)
        self.assertIs(type(new), cls)
        self.check_cast(new.x)
        self.assertIs(new.y, self.ids)
        self.assertEqual(new._Mangled__hidden, "hidden")

    def test_mappings(self):
        for given in (
            UserDict(a=self.x, b=1),
            ChainMap({"a": self.x}, {"a": 2, "b": 1}),
            MappingProxyType({"a": self.x, "b": 1}),
            Store({"a": self.x, "b": 1}),
        ):
            new = self.cast(given)
            self.assertIs(type(new), type(given))
            self.check_cast(new["a"])
            self.assertEqual(new["b"], 1)
            self.assertEqual(len(new), 2)
            self.assertIs(given["a"], self.x)
        # What is not a value is not cast
        self.assertEqual(new.scale.dtype, FP32)

    def test_registered_class(self):
        new = self.cast(Registered(self.x, "tag"))
        self.assertIs(type(new), Registered)
        self.check_cast(new.x)
        self.assertEqual(new.tag, "tag")

    def test_registered_after_it_was_seen(self):
        cls = type("Late", (Unknown,), {})
        given = cls(self.x)
        self.assertIs(self.cast(given), given)
        register_pytree_node(
            cls,
            lambda late: ([late.x], None),
            lambda values, _: cls(next(iter(values))),
        )
        self.check_cast(self.cast(given).x)

    def test_shared(self):
        shared = [self.x]
        args, kwargs = _cast_inputs(
            BF16, (self.x, shared, Plain(shared)), {"a": self.x, "b": shared}
        )
        self.check_cast(args[0])
        self.assertIs(args[1][0], args[0])
        self.assertIs(args[2].x, args[1])
        self.assertIs(kwargs["a"], args[0])
        self.assertIs(kwargs["b"], args[1])

    def test_what_cannot_be_made_anew(self):
        cases: List[Tuple[Any, str, str]] = [
            (OnException(self.x), "OnException", "seen from Python"),
            (Computed({"a": self.x}), "Computed", "not in its attributes"),
        ]
        for bad, name, reason in cases:
            inputs = (1, {"image": Plain(None, Point([bad]))})
            with self.assertRaises(TypeError) as caught:
                _cast_inputs(BF16, inputs, {})
            message = str(caught.exception)
            self.assertIn(" args[1]['image'].y.x[0] ", message)
            for text in (name, reason, "bfloat16", "cast_forward_inputs=False"):
                self.assertIn(text, message)
            self.assertIn("torch.utils._pytree", message)
            with self.assertRaisesRegex(TypeError, r"kwargs\['bad'\]"):
                _cast_inputs(BF16, (), {"bad": bad})

    def test_error_of_a_registered_class(self):
        def fail(values: Any, context: Any) -> Any:
            raise RuntimeError("no more of these")

        cls = type("Fails", (Unknown,), {})
        register_pytree_node(cls, lambda x: ([x.x], None), fail)
        with self.assertRaisesRegex(TypeError, r"args\[0\].*Fails.*no more of these"):
            _cast_inputs(BF16, (cls(self.x),), {})

    def test_cycle(self):
        inner: Dict[str, Any] = {"x": self.x}
        cyclic = [Plain(inner)]
        inner["back"] = cyclic
        for value in (cyclic, [1, cyclic]):
            with self.assertRaisesRegex(ValueError, r"args\[0\].*contains itself"):
                _cast_inputs(BF16, (value,), {})

    def test_depth(self):
        for wrap in (lambda x: [x], Plain, lambda x: {"a": x}):
            value: Any = self.x
            for _ in range(20 * sys.getrecursionlimit()):
                value = wrap(value)
            new = self.cast(value)
            while not isinstance(new, torch.Tensor):
                new = new[0] if type(new) is list else new
                new = new.x if type(new) is Plain else new
                new = new["a"] if type(new) is dict else new
            self.check_cast(new)

    def test_many_containers(self):
        value = [[self.low] for _ in range(5000)]
        self.assertIs(self.cast(value), value)
        value.append([self.x])
        new = self.cast(value)
        self.assertIs(new[0], value[0])
        self.check_cast(new[-1][0])

    def test_classes_are_let_go(self):
        cls = dataclass(type("Short", (), {"__annotations__": {"x": Any}}))
        self.check_cast(self.cast(cls(self.x)).x)
        gone = weakref.ref(cls)
        del cls
        gc.collect()
        self.assertIsNone(gone())


class TestCastTensors(InputTest):
    """Which tensors are cast: as ever, those that have floating-point numbers."""

    def check(self, tensor: torch.Tensor, is_cast: bool) -> torch.Tensor:
        for given in (tensor, [tensor], OrderedDict(a=tensor)):
            new = self.cast(given)
            self.assertEqual(new is not given, is_cast)
        new = self.cast(tensor)
        if is_cast:
            self.assertEqual(new.dtype, BF16)
            self.assertIs(type(new), type(tensor))
        return new

    def test_numbers(self):
        for dtype in (torch.float16, FP32, torch.float64):
            self.check(torch.ones(2, dtype=dtype), True)
        for dtype in (torch.int8, torch.int64, torch.bool, torch.complex64):
            self.check(torch.ones(2, dtype=dtype), False)

    def test_float8(self):
        for name in ("float8_e4m3fn", "float8_e5m2"):
            if hasattr(torch, name):
                low = torch.ones(2).to(getattr(torch, name))
                self.assertEqual(self.check(low, True), torch.ones(2, dtype=BF16))

    def test_sparse(self):
        new = self.check(torch.eye(2).to_sparse(), True)
        self.assertTrue(new.is_sparse)
        self.assertEqual(new.to_dense().float(), torch.eye(2))

    def test_nested(self):
        given = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
        try:
            given.to(BF16)
        except NotImplementedError:
            # As in versions that cannot cast it
            with self.assertRaises(NotImplementedError):
                self.cast(given)
        else:
            self.assertTrue(self.check(given, True).is_nested)

    def test_quantized(self):
        given = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
        self.check(given, False)

    def test_meta(self):
        self.assertTrue(self.check(torch.ones(2, device="meta"), True).is_meta)

    def test_parameter(self):
        new = self.cast(nn.Parameter(torch.ones(2)))
        self.assertIs(type(new), torch.Tensor)
        self.assertEqual(new.dtype, BF16)

    def test_subclass(self):
        class Tagged(torch.Tensor):
            pass

        self.check(torch.ones(2).as_subclass(Tagged), True)
        self.check(torch.ones(2).long().as_subclass(Tagged), False)

    def test_inference_mode_and_autocast(self):
        with torch.inference_mode():
            new = self.check(torch.ones(2), True)
            self.assertTrue(new.is_inference())
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.autocast(device, dtype=torch.bfloat16):
            self.check(torch.ones(2), True)
            self.check(self.low, False)

    def test_checkpoint(self):
        """What is run again casts alike."""
        seen: List[torch.Tensor] = []

        def run(x: torch.Tensor) -> torch.Tensor:
            args, _ = _cast_inputs(BF16, (Point(x),), {})
            seen.append(args[0].x)
            return args[0].x.pow(2).sum()

        for use_reentrant in (True, False):
            checkpoint(run, self.x, use_reentrant=use_reentrant).backward()
        self.assertEqual([x.dtype for x in seen], [BF16] * 4)
        self.assertEqual(self.x.grad, torch.full((2,), 4.0))

    def test_jit_trace(self):
        def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            (new,), _ = _cast_inputs(BF16, ([x, {"y": y}],), {})
            return new[0] + new[1]["y"]

        traced = torch.jit.trace(run, (torch.ones(2), torch.ones(2)))
        out = traced(torch.ones(3), torch.full((3,), 2.0))
        self.assertEqual(out, torch.full((3,), 3.0, dtype=BF16))

    def test_compile(self):
        """Without a graph break that ``_cast_forward_inputs`` has not."""
        if not hasattr(getattr(torch, "compiler", None), "is_compiling"):
            return

        def compiled(cast: Callable[..., Any], more: Any) -> torch.Tensor:
            def run(x: torch.Tensor) -> torch.Tensor:
                (args, kwargs) = cast(BF16, (x, [x, more]), {"dtype": more})
                return args[0] + args[1][0] + args[1][1].x + kwargs["dtype"].x

            torch._dynamo.reset()
            return torch.compile(run, backend="aot_eager", fullgraph=True)(self.x)

        # By name, since 1.13 has no such function (nor a compiler)
        cast_forward_inputs = vars(torch.distributed.utils)["_cast_forward_inputs"]

        def stock(*inputs: Any) -> Any:
            return cast_forward_inputs(*inputs)[0]

        for more in (Point(self.x), Point(self.low), Plain(self.x)):
            try:
                wanted = compiled(stock, more)
            except torch._dynamo.exc.Unsupported:
                # A dataclass, in some versions
                self.assertIs(type(more), Plain)
            else:
                self.assertEqual(compiled(_cast_inputs, more), wanted)

    def test_profiler(self):
        """The trace has the cast where there is one."""

        def labels(value: torch.Tensor) -> List[str]:
            with torch.autograd.profiler.profile() as profile:
                _cast_inputs(BF16, (value,), {})
            return [event.name for event in profile.function_events]

        self.assertIn("FSDP::cast_forward_inputs", labels(self.x))
        self.assertEqual(labels(self.low), [])


class TestMoveInputs(InputTest):
    META = torch.device("meta")

    def move(self, *args: Any, **kwargs: Any) -> Tuple[Any, Any]:
        (new_args,), (new_kwargs,) = _move_inputs(self.META, args, kwargs)
        return new_args, new_kwargs

    def test_nothing_to_move(self):
        for args, kwargs in (((), {}), ((self.x, [self.ids]), {"a": {"b": self.x}})):
            moved = _move_inputs(torch.device("cpu"), args, kwargs)
            self.assertIs(moved[0][0], args)
            self.assertIs(moved[1][0], kwargs)

    def test_move(self):
        given = defaultdict(list, a=(self.x, 1))
        (new, point), kwargs = self.move(given, Point(self.ids), b=[self.x])
        self.assertIs(type(new), defaultdict)
        self.assertTrue(new["a"][0].is_meta)
        self.assertIs(kwargs["b"][0], new["a"][0])
        self.assertEqual(new["c"], [])
        self.assertIs(type(point), Point)
        self.assertTrue(point.x.is_meta)
        self.assertFalse(given["a"][0].is_meta)

    def test_what_stays(self):
        """What may be meant for another device, and what moves itself."""
        for value in (Plain(self.x), UserDict(a=self.x), Unknown(self.x)):
            (new,), _ = self.move(value)
            self.assertIs(new, value)
        packed = pack_sequence([torch.ones(2, 3)])
        (new,), _ = self.move(packed)
        self.assertTrue(new.data.is_meta)
        self.assertFalse(new.batch_sizes.is_meta)


class TestReplaceGradInputs(InputTest):
    def replace(self, *args: Any, **kwargs: Any) -> Tuple[Any, Any]:
        self.calls: List[Any] = []

        def fn(*tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
            self.calls.append(tensors)
            return tuple(x * 1 for x in tensors)

        return _replace_grad_inputs(fn, args, kwargs)

    def test_nothing_to_replace(self):
        args, kwargs = (self.low, [self.ids, self.x.detach()]), {"a": [1]}
        new_args, new_kwargs = _replace_grad_inputs(self.fail, args, kwargs)
        self.assertIs(new_args, args)
        self.assertIs(new_kwargs, kwargs)

    def test_replace(self):
        settled: List[Any] = []
        given = NotInit(self.x)
        args, kwargs = self.replace(
            given, self.x, settled, a=defaultdict(list, b=self.x)
        )
        (tensors,) = self.calls
        self.assertEqual(len(tensors), 2)
        self.assertIs(tensors[0], self.x)
        self.assertIs(args[1], args[0].x)
        self.assertIs(kwargs["a"]["b"], args[1])
        self.assertIsNot(args[1], self.x)
        self.assertIs(args[2], settled)
        self.assertEqual(kwargs["a"]["c"], [])

    def test_what_cannot_be_made_anew_stays(self):
        cyclic: List[Any] = [self.x]
        cyclic.append(cyclic)
        for value in (OnException(self.x), cyclic):
            (new, x), _ = self.replace(value, self.x)
            self.assertIs(new, value)
            self.assertIsNot(x, self.x)


if __name__ == "__main__":
    run_tests()
