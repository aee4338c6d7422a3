"""NCCL, done by gloo; it takes tensors on CUDA alone, as NCCL does."""

import functools

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from cuda_standin.marks import index_of


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
    """In 2.x a group has a backend for each kind of device; our CUDA tensors look like the CPU's."""

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


def _needs_cuda(group):
    try:
        return dist.get_backend(group) == "nccl"
    except (RuntimeError, ValueError, KeyError):
        return False


def _check(group, *tensors):
    if not _needs_cuda(group):
        return
    for tensor in tensors:
        for one in tensor if isinstance(tensor, (list, tuple)) else [tensor]:
            if isinstance(one, torch.Tensor) and index_of(one) is None and one.device.type == "cpu":
                raise RuntimeError("Tensors must be CUDA and dense")


def _is_member(group):
    return not c10d._rank_not_in_group(group)


class _Done:
    """The work of a collective that is done."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def is_success(self):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(None)
        return future


def _finished(async_op):
    return _Done() if async_op else None


_LOW = (torch.bfloat16,)


def _all_reduce(own):
    @functools.wraps(own)
    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        _check(group, tensor)
        if not _is_member(group) or (tensor.dtype not in _LOW and op != dist.ReduceOp.AVG):
            return own(tensor, op, group, async_op)
        work = tensor.detach().float() if tensor.dtype in _LOW else tensor.detach().clone()
        average = op == dist.ReduceOp.AVG
        own(work, dist.ReduceOp.SUM if average else op, group)
        if average:
            work = work / dist.get_world_size(group)
        tensor.detach().copy_(work)
        return _finished(async_op)

    return all_reduce


def _all_gather_base(own):
    @functools.wraps(own)
    def all_gather(output_tensor, input_tensor, group=None, async_op=False):
        _check(group, output_tensor, input_tensor)
        if not _is_member(group):
            return None
        size = dist.get_world_size(group)
        if output_tensor.numel() != input_tensor.numel() * size:
            raise RuntimeError(
                "output tensor size must be equal to world_size times input tensor size"
            )
        if output_tensor.dtype != input_tensor.dtype:
            raise RuntimeError("output tensor must have the same type as input tensor")
        parts = [torch.empty_like(input_tensor.detach()) for _ in range(size)]
        dist.all_gather(
            [_as_bytes(part) for part in parts], _as_bytes(input_tensor.detach()), group=group
        )
        whole = torch.cat([part.reshape(-1) for part in parts])
        output_tensor.detach().copy_(whole.view(output_tensor.shape))
        return _finished(async_op)

    return all_gather


def _as_bytes(tensor):
    """gloo of old does not know bfloat16; to gather it is to copy it."""
    tensor = tensor.contiguous()
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _reduce_scatter_base(own):
    @functools.wraps(own)
    def reduce_scatter(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
        _check(group, output, input)
        if not _is_member(group):
            return None
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        if input.numel() != output.numel() * size:
            raise RuntimeError("input tensor must be the same size as output size times world size")
        if output.dtype != input.dtype:
            raise RuntimeError("input tensor must have the same type as the output tensor")
        work = input.detach().clone()
        dist.all_reduce(work, op, group)
        output.detach().copy_(work.view(-1).chunk(size)[rank].view_as(output))
        return _finished(async_op)

    return reduce_scatter


def _reduce_scatter(own):
    @functools.wraps(own)
    def reduce_scatter(output, input_list, op=dist.ReduceOp.SUM, group=None, async_op=False):
        _check(group, output, input_list)
        if not _is_member(group):
            return None
        rank = dist.get_rank(group)
        for number, one in enumerate(input_list):
            work = one.detach().clone()
            dist.all_reduce(work, op, group)
            if number == rank:
                output.detach().copy_(work)
        return _finished(async_op)

    return reduce_scatter


def _copied_as_bytes(own, first_is_list):
    """Collectives that only move data, for the dtypes that gloo of old does not know."""

    @functools.wraps(own)
    def moved(first, *args, **kwargs):
        tensors = [first, *[arg for arg in args if isinstance(arg, (torch.Tensor, list))]]
        group = kwargs.get("group")
        _check(group, *tensors)
        view = lambda v: (  # noqa: E731
            [view(one) for one in v]
            if isinstance(v, list) and v and isinstance(v[0], torch.Tensor)
            else v.detach().view(torch.int16)
            if isinstance(v, torch.Tensor) and v.dtype == torch.bfloat16 and v.is_contiguous()
            else v
        )
        return own(view(first), *map(view, args), **{k: view(v) for k, v in kwargs.items()})

    return moved


def install():
    """Make the backend ``nccl`` one of gloo, and give gloo what it lacks of NCCL."""
    is_old = not hasattr(dist.ProcessGroup, "_register_backend")
    c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.is_nccl_available = dist.is_nccl_available = lambda: True
    c10d._new_process_group_helper = _also_for_cpu(c10d._new_process_group_helper)
    replaced = {"all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter}
    if is_old:
        for name in ("broadcast", "all_gather", "scatter", "gather", "reduce"):
            replaced[name] = lambda own: _copied_as_bytes(own, True)
        for name in ("all_gather_into_tensor", "_all_gather_base"):
            replaced[name] = _all_gather_base
        for name in ("reduce_scatter_tensor", "_reduce_scatter_base"):
            replaced[name] = _reduce_scatter_base
    for name, wrap in replaced.items():
        wrapped = wrap(getattr(c10d, name))
        setattr(c10d, name, wrapped)
        setattr(dist, name, wrapped)
