"""
What FSDP does to the tensors in the inputs of a forward: it casts them, moves
them, and hooks them into backward. Whichever it is:

- What needs nothing comes back as the very same object: tensors, containers in
  which nothing is replaced, and every object of an unknown type.
- A container in which something is replaced is made anew, as its own type and
  with its own further state, without a call of its ``__new__``, ``__init__``,
  ``__post_init__`` or default factory. The caller's container is not written to.
- What appears twice, a tensor or a container, is replaced once.
- Known are ``tuple``, ``list``, ``dict`` and ``set`` with all their subclasses
  (named tuples, ``PackedSequence``, ``OrderedDict``, ``defaultdict``), every
  dataclass and mapping, and what is registered with ``torch.utils._pytree``.
- Nesting may be as deep as memory allows.
- What would have to be made anew and cannot be, or contains itself, is an error
  that says where it is.

A cast concerns the tensors that ``torch.is_floating_point`` names and that have
another dtype, and is what ``Tensor.to`` does. So float8, sparse, nested and meta
tensors are cast, and so are tensor subclasses, by their own ``to``; complex and
quantized tensors are not.
"""

import dataclasses
import functools
from collections import defaultdict, OrderedDict
from collections.abc import Mapping
from types import BuiltinFunctionType, MappingProxyType, MemberDescriptorType
from typing import (
    Any,
    Callable,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)
from weakref import WeakKeyDictionary

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import SUPPORTED_NODES


_Tensor = torch.Tensor
_Args = Tuple[Any, ...]
_Kwargs = Dict[str, Any]
# What an instance holds in its ``__dict__``, and in its slots
_State = Tuple[Dict[str, Any], Dict[str, Any]]

# Types whose instances hold no tensors, for which nothing else is to be asked
_PLAIN = frozenset(
    {int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device}
    | {torch.Size, torch.Generator}
)
try:
    # What dynamo can trace, where there are none of the caller's objects to keep
    from torch.compiler import is_compiling as _is_compiling
    from torch.distributed.utils import _cast_forward_inputs as _cast_when_compiling
except ImportError:

    def _is_compiling() -> bool:
        return False


# With more containers than this, some may be in themselves
_QUICK_LOOK = 1000


def _cast_inputs(
    dtype: Optional[torch.dtype], args: _Args, kwargs: _Kwargs
) -> Tuple[_Args, _Kwargs]:
    """Cast the floating-point tensors in the inputs to ``dtype``, if there is one."""
    if dtype is None:
        return args, kwargs
    if _is_compiling():
        (args, kwargs), _ = _cast_when_compiling(dtype, args, kwargs)
        return args, kwargs
    # What this looks at is all that there is, in nearly every forward
    wanted: Dict[int, torch.Tensor] = {}
    containers: List[Any] = [args, kwargs] if kwargs else [args]
    for container in containers:
        for x in container.values() if type(container) is dict else container:
            cls = type(x)
            if cls is _Tensor:
                if x.dtype is not dtype and x.dtype.is_floating_point:
                    wanted[id(x)] = x
            elif cls is list or cls is tuple or cls is dict:
                containers.append(x)
            elif cls not in _PLAIN:
                return _cast_all(dtype, args, kwargs)
        if len(containers) > _QUICK_LOOK:
            return _cast_all(dtype, args, kwargs)
    if not wanted:
        return args, kwargs
    if len(containers) > 2 and len(set(map(id, containers))) < len(containers):
        return _cast_all(dtype, args, kwargs)

    new: Dict[int, Any] = _cast(dtype, wanted)
    for container in reversed(containers):
        cls = type(container)
        copy: Any = None
        for key, x in container.items() if cls is dict else enumerate(container):
            if id(x) in new:
                if copy is None:
                    copy = container.copy() if cls is dict else list(container)
                copy[key] = new[id(x)]
        if copy is not None:
            new[id(container)] = tuple(copy) if cls is tuple else copy
    return new.get(id(args), args), new.get(id(kwargs), kwargs)


def _cast_all(
    dtype: torch.dtype, args: _Args, kwargs: _Kwargs
) -> Tuple[_Args, _Kwargs]:
    """Do it for inputs with containers of any type, and any number of them."""
    return _replace(
        args,
        kwargs,
        lambda x: (
            isinstance(x, torch.Tensor)
            and torch.is_floating_point(x)
            and x.dtype != dtype
        ),
        functools.partial(_cast, dtype),
        f"cast to {dtype}",
    )


def _cast(dtype: torch.dtype, tensors: Dict[int, Any]) -> Dict[int, Any]:
    if not torch.autograd._profiler_enabled():
        return {key: x.to(dtype) for key, x in tensors.items()}
    with torch.profiler.record_function("FSDP::cast_forward_inputs"):
        return {key: x.to(dtype) for key, x in tensors.items()}


def _move_inputs(
    device: torch.device, args: _Args, kwargs: _Kwargs
) -> Tuple[Tuple[_Args], Tuple[_Kwargs]]:
    """
    Move the tensors in tuples, lists and dicts to ``device``. Those in anything
    else stay, since they may be meant for another device, and a ``PackedSequence``
    moves itself. Returns the inputs in tuples of one each, as ``_to_kwargs`` does.
    """

    def is_elsewhere(x: Any) -> bool:
        if isinstance(x, PackedSequence):
            x = x.data
        return isinstance(x, torch.Tensor) and x.device != device

    args, kwargs = _replace(
        args,
        kwargs,
        is_elsewhere,
        lambda wanted: {key: x.to(device) for key, x in wanted.items()},
        f"moved to {device}",
        leaves=(torch.Tensor, PackedSequence),
        containers=(tuple, list, dict),
    )
    return (args,), (kwargs,)


def _replace_grad_inputs(
    fn: Callable[..., Sequence[torch.Tensor]], args: _Args, kwargs: _Kwargs
) -> Tuple[_Args, _Kwargs]:
    """
    Replace the tensors in the inputs that require a gradient with what ``fn``
    returns for them. Those in what cannot be made anew stay.
    """
    return _replace(
        args,
        kwargs,
        lambda x: isinstance(x, torch.Tensor) and x.requires_grad,
        lambda wanted: dict(zip(wanted, fn(*wanted.values()))),
    )


class _Kind(NamedTuple):
    """How to look into the containers of one type, and how to make one anew."""

    # What is in the container, and whatever the others need besides
    open: Callable[[Any], Tuple[Sequence[Any], Any]]
    # From the container, what ``open`` gave besides, and what is to be in the new one
    rebuild: Callable[[Any, List[Any], Any], Any]
    # Where the nth content is in the container, for example ``['image']``
    label: Callable[[Any, Any, int], str]
    # Whether a class that is registered with pytree is better off with that
    yields: bool = False


class _Node:
    """A container in the inputs, and what is in it."""

    __slots__ = ("contents", "context", "kind", "parent", "rest", "value")

    def __init__(self, value: Any, kind: _Kind, parent: Optional["_Node"]) -> None:
        self.value = value
        self.kind = kind
        self.parent = parent
        self.contents, self.context = kind.open(value)
        self.rest = iter(self.contents)

    def place(self) -> str:
        """Return where it is in the inputs, for example ``args[1].mask``."""
        node, labels = self, []
        while node.parent is not None:
            parent = node.parent
            n = next(n for n, x in enumerate(parent.contents) if x is node.value)
            labels.append(parent.kind.label(parent.value, parent.context, n))
            node = parent
        return "".join(reversed(labels))


def _replace(
    args: _Args,
    kwargs: _Kwargs,
    wants: Callable[[Any], bool],
    replace: Callable[[Dict[int, Any]], Dict[int, Any]],
    purpose: Optional[str] = None,
    leaves: Tuple[type, ...] = (torch.Tensor,),
    containers: Tuple[type, ...] = (object,),
) -> Tuple[_Args, _Kwargs]:
    """
    Replace everything in the inputs that ``wants`` is true of, looking into
    ``containers`` and not into ``leaves``. ``replace`` gets all of it at once, each
    object once, by its id. A container that cannot be made anew for it is an error that
    names ``purpose``; without a purpose, the container stays.
    """
    wanted: Dict[int, Any] = {}
    # Each container after those that are in it, the order to make them anew in
    nodes: List[_Node] = []
    is_done: Dict[int, bool] = {}
    in_themselves: Set[int] = set()
    path = [_Node((args, kwargs) if kwargs else (args,), _INPUTS, None)]
    while path:
        node = path[-1]
        for x in node.rest:
            cls = type(x)
            if cls in _PLAIN:
                continue
            if wants(x):
                wanted[id(x)] = x
            elif id(x) in is_done:
                if not is_done[id(x)]:
                    in_themselves.add(id(x))
            elif isinstance(x, containers) and not isinstance(x, leaves):
                kind = _get_kind(cls)
                if kind is not None:
                    is_done[id(x)] = False
                    path.append(_Node(x, kind, node))
                    break
        else:
            is_done[id(node.value)] = True
            nodes.append(path.pop())
    if not wanted:
        return args, kwargs

    new = replace(wanted)
    for node in nodes[:-1]:
        if new.keys().isdisjoint(map(id, node.contents)):
            continue
        contents = [new.get(id(x), x) for x in node.contents]
        try:
            if id(node.value) in in_themselves:
                raise ValueError("it contains itself")
            new[id(node.value)] = node.kind.rebuild(node.value, node.context, contents)
        except Exception as error:
            if purpose is not None:
                raise _explain(error, node, purpose) from error
    return new.get(id(args), args), new.get(id(kwargs), kwargs)


def _explain(error: Exception, node: _Node, purpose: str) -> Exception:
    cls = type(node.value)
    is_cast = purpose.startswith("cast")
    return (ValueError if isinstance(error, ValueError) else TypeError)(
        f"FSDP: tensors in {node.place()} have to be {purpose}, but this "
        f"{cls.__module__}.{cls.__qualname__} cannot be made anew with them: {error}. "
        "Register the class with torch.utils._pytree"
        + (", or leave inputs alone with cast_forward_inputs=False" if is_cast else "")
    )


def _label_item(value: Any, context: Any, n: int) -> str:
    return f"[{n}]"


_BUILTIN = {
    list: _Kind(lambda x: (x, None), lambda x, _, contents: contents, _label_item),
    tuple: _Kind(
        lambda x: (x, None), lambda x, _, contents: tuple(contents), _label_item
    ),
    dict: _Kind(
        lambda x: (list(x.values()), None),
        lambda x, _, contents: dict(zip(x, contents)),
        lambda x, _, n: f"[{list(x)[n]!r}]",
    ),
}


_INPUTS = _BUILTIN[tuple]._replace(label=lambda x, _, n: ("args", "kwargs")[n])


def _flatten(x: Any) -> Tuple[Sequence[Any], Any]:
    contents, context = SUPPORTED_NODES[type(x)].flatten_fn(x)
    return list(contents), context


_REGISTERED = _Kind(
    _flatten,
    lambda x, context, contents: SUPPORTED_NODES[type(x)].unflatten_fn(
        contents, context
    ),
    _label_item,
)


# Of which nothing is known but that it may be registered later on
_OPAQUE = _REGISTERED._replace(yields=True)

# What was learned of other types. Nothing in a kind keeps its type alive
_kinds: "WeakKeyDictionary[type, _Kind]" = WeakKeyDictionary()


def _get_kind(cls: type) -> Optional[_Kind]:
    """Return how to handle the containers of type ``cls``, if it is one."""
    kind = _BUILTIN.get(cls)
    if kind is not None:
        return kind
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kinds[cls] = _learn_kind(cls)
    if kind.yields and cls in SUPPORTED_NODES:
        return _REGISTERED
    return None if kind is _OPAQUE else kind


def _learn_kind(cls: type) -> _Kind:
    base = next((base for base in _ITEMS if issubclass(cls, base)), object)
    if base is not object or dataclasses.is_dataclass(cls):
        return _class_kind(cls, base)
    if cls is MappingProxyType:
        return _Kind(_open_mapping, _rebuild_proxy, _label_key)
    if issubclass(cls, Mapping):
        slots, new = _slots(cls), _constructor(cls)

        def rebuild(x: Any, items: Any, contents: List[Any]) -> Any:
            copy = new(type(x))
            _set_state(copy, _replace_in_state(x, slots, items, contents))
            return copy

        return _Kind(_open_mapping, rebuild, _label_key, yields=True)
    return _OPAQUE


def _class_kind(cls: type, base: type) -> _Kind:
    """
    Return the kind of a subclass of the builtin container ``base``, of a
    dataclass, or of both. An instance has items, fields, and further state.
    """
    is_dataclass = dataclasses.is_dataclass(cls)
    fields = tuple(f.name for f in dataclasses.fields(cls)) if is_dataclass else ()
    names = getattr(cls, "_fields", ()) if base is tuple else ()
    slots = _slots(cls)
    get_items, add_items = _ITEMS.get(base, _NO_ITEMS)
    new = _constructor(cls)

    def open(x: Any) -> Tuple[Sequence[Any], Any]:
        keys, items = get_items(x)
        values = _get_attributes(x, fields)
        return [*items, *values.values()], (keys, list(values))

    def rebuild(x: Any, context: Any, contents: List[Any]) -> Any:
        keys, present = context
        items, values = contents[: len(keys)], contents[len(keys) :]
        copy = new(type(x), items) if base is tuple else new(type(x))
        add_items(copy, keys, items)
        _set_state(copy, _get_state(x, slots))
        for name, value in zip(present, values):
            object.__setattr__(copy, name, value)
        return copy

    def label(x: Any, context: Any, n: int) -> str:
        keys, present = context
        if n >= len(keys):
            return f".{present[n - len(keys)]}"
        return f".{names[n]}" if n < len(names) else f"[{keys[n]!r}]"

    return _Kind(open, rebuild, label, yields=new is _cannot_construct)


def _get_keys_and_values(base: Any) -> Callable[[Any], Tuple[Sequence[Any], List[Any]]]:
    return lambda x: (list(base.keys(x)), list(base.values(x)))


def _get_elements(base: Any) -> Callable[[Any], Tuple[Sequence[Any], List[Any]]]:
    def get(x: Any) -> Tuple[Sequence[Any], List[Any]]:
        elements = list(base.__iter__(x))
        return range(len(elements)), elements

    return get


def _set_items(base: Any) -> Callable[[Any, Sequence[Any], List[Any]], None]:
    def set_items(x: Any, keys: Sequence[Any], values: List[Any]) -> None:
        for key, value in zip(keys, values):
            base.__setitem__(x, key, value)

    return set_items


# How to get the items of the builtin containers, and how to add them to an empty
# one, by the methods of the containers themselves and not those of a subclass
_NO_ITEMS: Tuple[Any, Any] = (lambda x: ((), []), lambda x, keys, items: None)
_ITEMS: Dict[type, Tuple[Any, Any]] = {
    OrderedDict: (_get_keys_and_values(OrderedDict), _set_items(OrderedDict)),
    dict: (_get_keys_and_values(dict), _set_items(dict)),
    list: (_get_elements(list), lambda x, keys, items: list.extend(x, items)),
    tuple: (_get_elements(tuple), _NO_ITEMS[1]),
    set: (_get_elements(set), lambda x, keys, items: set.update(x, items)),
}


def _open_mapping(x: Any) -> Tuple[Sequence[Any], Any]:
    items = list(x.items())
    return [value for _, value in items], items


def _label_key(x: Any, items: Any, n: int) -> str:
    return f"[{items[n][0]!r}]"


def _rebuild_proxy(x: Any, items: Any, contents: List[Any]) -> Any:
    return MappingProxyType(dict(zip((key for key, _ in items), contents)))


def _replace_in_state(
    x: Any, slots: Tuple[str, ...], items: Any, contents: List[Any]
) -> _State:
    """
    Return the state of a mapping, which holds its values in a way that only its
    own code knows, with the new ones in the place of the old.
    """
    changed = {
        id(value): new for (_, value), new in zip(items, contents) if new is not value
    }
    found: Set[int] = set()

    def replace(wanted: Dict[int, Any]) -> Dict[int, Any]:
        found.update(wanted)
        return {key: changed[key] for key in wanted}

    state, _ = _replace(
        _get_state(x, slots),
        {},
        lambda value: id(value) in changed,
        replace,
        "replaced",
        containers=(dict, list, tuple),
    )
    if len(found) < len(changed):
        raise TypeError("its values are not in its attributes")
    return state  # type: ignore[return-value]


def _slots(cls: type) -> Tuple[str, ...]:
    """Return the names of what instances keep outside of their ``__dict__``."""
    return tuple(
        name
        for base in cls.__mro__
        if "__slots__" in vars(base) or base is defaultdict
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    )


def _get_attributes(x: Any, names: Sequence[str]) -> Dict[str, Any]:
    """Return those that are there, with no regard to what ``x`` says of them."""
    found = {}
    for name in names:
        try:
            found[name] = object.__getattribute__(x, name)
        except AttributeError:
            continue
    return found


def _get_state(x: Any, slots: Tuple[str, ...]) -> _State:
    return (
        _get_attributes(x, ("__dict__",)).get("__dict__", {}),
        _get_attributes(x, slots),
    )


def _set_state(x: Any, state: _State) -> None:
    attributes, slots = state
    if attributes:
        object.__getattribute__(x, "__dict__").update(attributes)
    for name, value in slots.items():
        object.__setattr__(x, name, value)


def _constructor(cls: type) -> Callable[..., Any]:
    """
    Return what makes an instance of ``cls`` that no Python code of ``cls`` knows
    of. It raises if instances hold more than Python can see.
    """
    base, new = next(
        (base, vars(base)["__new__"])
        for base in cls.__mro__
        if isinstance(vars(base).get("__new__"), BuiltinFunctionType)
    )
    # What torch.max returns is a tuple of a type of its own, not written in Python
    is_result = issubclass(base, tuple) and hasattr(base, "n_sequence_fields")
    if is_result or base in (object, tuple, list, dict, set):
        return new
    return _cannot_construct


def _cannot_construct(cls: type, *args: Any) -> Any:
    raise TypeError("not all that it holds can be seen from Python")
