"""NCCL, done by gloo; it takes tensors on CUDA alone, as NCCL does."""

import functools
import inspect

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from cuda_standin.kernels import OWN, tensors_in


class _Options:
    """As of ``ProcessGroupNCCL``."""

    def __init__(self, is_high_priority_stream=False):
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = c10d.default_pg_timeout


class ProcessGroupNCCL(dist.ProcessGroupGloo):
    """One of gloo's, with the methods that only NCCL's have."""

    Options = _Options

    def __init__(self, store, rank, size, options=None):
        timeout = getattr(options, "_timeout", None) or c10d.default_pg_timeout
        super().__init__(store, rank, size, timeout=timeout)
        _groups.append(self)

    def _shutdown(self):
        _groups.remove(self)

    abort = _shutdown


_groups = []  # C++ that holds one alone would give it back as one of gloo's


def _also_for_cpu(make):
    """In 2.x a group has a backend for each device; our CUDA tensors look like the CPU's."""

    @functools.wraps(make)
    def wrapper(*args, **kwargs):
        made = make(*args, **kwargs)
        group = made[0] if isinstance(made, tuple) else made
        if isinstance(group, dist.ProcessGroup) and hasattr(group, "_register_backend"):
            cuda, cpu = torch.device("cuda"), torch.device("cpu")
            kinds = {kind.type for kind in group._device_types}
            if "cuda" in kinds and "cpu" not in kinds:
                kind = dist.ProcessGroup.BackendType.GLOO
                group._register_backend(cpu, kind, group._get_backend(cuda))
        return made

    return wrapper


def _is_nccl(group):
    try:
        return dist.get_backend(group) == "nccl"
    except (AssertionError, RuntimeError, ValueError, KeyError):  # not a group of torch's own
        return False


def _on_cuda_where_nccl(own):
    """Choose a group's device without the backend that ``_also_for_cpu`` adds."""

    @functools.wraps(own)
    def wrapper(group=None):
        return type(own(group))("cuda") if _is_nccl(group) else own(group)

    return wrapper


def _is_member(group):
    return not c10d._rank_not_in_group(group)


def _only_for_cuda(own):
    """A collective that refuses tensors on the CPU where its group is NCCL's."""
    signature = inspect.signature(own)

    @functools.wraps(own)
    def collective(*args, **kwargs):
        if any(tensor.device.type == "cpu" for tensor in tensors_in(args, kwargs)):
            group = signature.bind(*args, **kwargs).arguments.get("group")
            if _is_nccl(group):
                raise RuntimeError("Tensors must be CUDA and dense")
        return own(*args, **kwargs)

    return collective


class _Done:
    """The work of a collective that is done."""

    def __init__(self, tensor):
        self._tensor = tensor

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def is_success(self):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result([self._tensor])
        return future


def _finished(async_op, tensor):
    return _Done(tensor) if async_op else None


def _as_gloo_knows_it(value):
    """To move a tensor, gloo of old need not know its dtype: a view of one that it does."""
    if isinstance(value, (list, tuple)):
        return [_as_gloo_knows_it(one) for one in value]
    if isinstance(value, torch.Tensor) and value.dtype in _UNKNOWN:
        return value.detach().view(_UNKNOWN[value.dtype])
    return value


_UNKNOWN = {torch.bfloat16: torch.float16, torch.bool: torch.uint8}


def _moving(own):
    @functools.wraps(own)
    def collective(*args, **kwargs):
        args = [_as_gloo_knows_it(value) for value in args]
        kwargs = {name: _as_gloo_knows_it(value) for name, value in kwargs.items()}
        return own(*args, **kwargs)

    return collective


def _summed(tensor, op, group):
    """The reduction of a tensor over a group as NCCL does it: bfloat16 and averages, too."""
    is_low = tensor.dtype == torch.bfloat16
    work = tensor.detach().float() if is_low else tensor.detach().clone()
    is_average = op == dist.ReduceOp.AVG
    _own_all_reduce(work, dist.ReduceOp.SUM if is_average else op, group)
    if is_average:
        work /= dist.get_world_size(group)
    return work.to(tensor.dtype)


def _all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
    if not _is_member(group) or (tensor.dtype != torch.bfloat16 and op != dist.ReduceOp.AVG):
        return _own_all_reduce(tensor, op, group, async_op)
    tensor.detach().copy_(_summed(tensor, op, group))
    return _finished(async_op, tensor)


def _reduce(tensor, dst, op=dist.ReduceOp.SUM, group=None, async_op=False):
    if _is_member(group):
        work = _summed(tensor, op, group)
        if dist.get_rank() == dst:
            tensor.detach().copy_(work)
    return _finished(async_op, tensor)


def _all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    if not _is_member(group):
        return None
    size = dist.get_world_size(group)
    if output_tensor.numel() != input_tensor.numel() * size:
        raise RuntimeError("output tensor size must be equal to world_size times input tensor size")
    if output_tensor.dtype != input_tensor.dtype:
        raise RuntimeError("output tensor must have the same type as input tensor")
    parts = [torch.empty_like(input_tensor.detach()) for _ in range(size)]
    dist.all_gather(parts, input_tensor.detach().contiguous(), group)
    whole = torch.cat([part.reshape(-1) for part in parts])
    output_tensor.detach().copy_(whole.view(output_tensor.shape))
    return _finished(async_op, output_tensor)


def _reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
    if not _is_member(group):
        return None
    size = dist.get_world_size(group)
    if input.numel() != output.numel() * size:
        raise RuntimeError("input tensor must be the same size as output size times world size")
    if output.dtype != input.dtype:
        raise RuntimeError("input tensor must have the same type as the output tensor")
    parts = _summed(input, op, group).view(-1).chunk(size)
    output.detach().copy_(parts[dist.get_rank(group)].view_as(output))
    return _finished(async_op, output)


def _reduce_scatter(output, input_list, op=dist.ReduceOp.SUM, group=None, async_op=False):
    if not _is_member(group):
        return None
    reduced = [_summed(one, op, group) for one in input_list]
    output.detach().copy_(reduced[dist.get_rank(group)])
    return _finished(async_op, output)


def _flat(own):
    """NCCL does not mind the shapes of what it gathers into one tensor, and gloo does."""

    @functools.wraps(own)
    def collective(output_tensor, input_tensor, *args, **kwargs):
        return own(output_tensor.view(-1), input_tensor.view(-1), *args, **kwargs)

    return collective


def _average_by_sum(own):
    """Gloo's own reduction, with averages as sums; what counts collectives sees it."""
    signature = inspect.signature(own)

    @functools.wraps(own)
    def collective(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        if given.get("op") != dist.ReduceOp.AVG or not _is_member(given.get("group")):
            return own(*args, **kwargs)
        asynchronous = given.get("async_op", False)
        given.update(op=dist.ReduceOp.SUM, async_op=False)
        own(*bound.args, **bound.kwargs)
        output = given[next(iter(signature.parameters))]
        output.detach().div_(dist.get_world_size(given.get("group")))
        return _finished(asynchronous, output)

    return collective


def _averaging(own, average):
    """A reduction of gloo's, which refuses averages or, of old, takes them for sums."""
    signature = inspect.signature(own)

    @functools.wraps(own)
    def collective(*args, **kwargs):
        op = signature.bind(*args, **kwargs).arguments.get("op")
        return (average if op == dist.ReduceOp.AVG else own)(*args, **kwargs)

    return collective


def _functional(func, args, kwargs, where):
    """The same for functional collectives, which are operations of their own."""
    *_, group_name = args
    group = c10d._resolve_process_group(group_name)
    if where is None and _is_nccl(group):
        raise RuntimeError("Tensors must be CUDA and dense")
    summing = ["sum" if isinstance(arg, str) and arg == "avg" else arg for arg in args]
    result = func(*summing, **kwargs)
    if any(isinstance(arg, str) and arg == "avg" for arg in args):
        for tensor in result if isinstance(result, list) else [result]:
            torch.ops._c10d_functional.wait_tensor(tensor).div_(group.size())
    return result


_FUNCTIONAL = """
    all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out all_reduce
    all_reduce_ all_reduce_coalesced all_reduce_coalesced_ all_to_all_single broadcast broadcast_
    reduce_scatter_tensor reduce_scatter_tensor_coalesced
"""
_MOVING = "broadcast all_gather gather scatter all_to_all all_to_all_single"
_PAIRWISE = "send recv isend irecv"
_INTO_TENSOR = "all_gather_into_tensor _all_gather_base all_gather_single"
_SCATTERED = "reduce_scatter_tensor _reduce_scatter_base reduce_scatter_single"


def install():
    """Make the backend ``nccl`` one of gloo, and give gloo what it lacks of NCCL."""
    global _own_all_reduce
    is_old = not hasattr(dist.ProcessGroup, "_register_backend")
    c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.is_nccl_available = dist.is_nccl_available = lambda: True
    c10d._new_process_group_helper = _also_for_cpu(c10d._new_process_group_helper)
    if not hasattr(torch._C, "_nccl_version"):
        torch.cuda.nccl.version = lambda: (2, 18, 1)  # torch was built without it
    for name in ("_get_object_coll_device", "_get_pg_default_device"):
        if hasattr(c10d, name):
            setattr(c10d, name, _on_cuda_where_nccl(getattr(c10d, name)))
    _own_all_reduce = c10d.all_reduce
    wrapped = {"all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter}
    if is_old:
        wrapped["reduce"] = _reduce
        wrapped.update((name, _moving(getattr(c10d, name))) for name in _MOVING.split())
        wrapped.update(dict.fromkeys(_INTO_TENSOR.split(), _all_gather_into_tensor))
        wrapped.update(dict.fromkeys(_SCATTERED.split(), _reduce_scatter_tensor))
    else:
        for name in _INTO_TENSOR.split():
            if hasattr(c10d, name):
                wrapped[name] = _flat(getattr(c10d, name))
        for name in _SCATTERED.split():
            if hasattr(c10d, name):
                wrapped[name] = _average_by_sum(getattr(c10d, name))
        wrapped["reduce"] = _averaging(c10d.reduce, _reduce)
        OWN.update((f"_c10d_functional::{name}", _functional) for name in _FUNCTIONAL.split())
    for name in f"{_MOVING} {_PAIRWISE} reduce {_INTO_TENSOR} {_SCATTERED}".split():
        if name not in wrapped and hasattr(c10d, name):
            wrapped[name] = getattr(c10d, name)
    for name, collective in wrapped.items():
        if hasattr(c10d, name):
            checked = _only_for_cuda(collective)
            setattr(c10d, name, checked)
            setattr(dist, name, checked)
