"""What must hold of the CUDA stand-in: run by test_cuda_standin, in a process that has it."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import sys
import tempfile
import threading
import traceback
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn

CHECKS: dict[str, Callable[[], None]] = {}


def storage_of(tensor: torch.Tensor) -> Any:
    old = not hasattr(tensor, "untyped_storage")
    return tensor.storage()._storage if old else tensor.untyped_storage()


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def refused(words: str, call: Callable[[], Any]) -> None:
    try:
        result = call()
    except Exception as error:
        assert re.search(words, str(error)), error
    else:
        raise AssertionError(f"not refused: {result}")


def on(device: str, *tensors: torch.Tensor) -> None:
    for tensor in tensors:
        assert str(tensor.device) == device, (tensor.device, device)


def in_two_processes(function: Callable[[int], None]) -> None:
    """Call it with each rank of a group, as the ranks of upstream's tests are: forked."""
    store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 2)
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            try:
                torch.cuda.set_device(rank)
                dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
                function(rank)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    ends = [os.waitpid(child, 0)[1] for child in children]
    assert ends == [0, 0], ends


# Marks


@check
def marks_go_with_views_and_copies() -> None:
    x = torch.zeros(4, 3, device="cuda:1")
    on("cuda:1", x, x.data, x.detach(), x[0], x.t(), x.view(-1), *x.chunk(2), *x.split([1, 3]))
    on("cuda:1", x + 1, x.clone(), x.half(), copy.deepcopy(x), torch.empty_like(x), x.new_zeros(2))
    on("cuda:1", nn.Parameter(x), x.as_strided((2,), (1,)), x.expand(2, 4, 3), x.sum(), x.add_(1))
    on("cuda:1", *torch.topk(x, 1), *torch._foreach_add([x, x], 1), torch.cat([x, x]), x == x)
    on(
        "cpu",
        torch.zeros(4),
        x.cpu(),
        torch.zeros_like(x, device="cpu"),
        x.new_zeros(1, device="cpu"),
    )
    on("cuda:1", torch.Tensor(x))
    on("cpu", torch.Tensor(2), torch.Tensor([1.0]))
    assert x.is_cuda and not x.is_cpu and x.get_device() == 1
    assert storage_of(x).device == x.device and storage_of(x.cpu()).device.type == "cpu"


@check
def marks_are_not_left_to_the_next_storage() -> None:
    for _ in range(10_000):
        torch.zeros(8, device="cuda")
    fresh = [torch.zeros(8) for _ in range(1000)]
    assert not any(one.is_cuda for one in fresh)


@check
def marks_follow_data_and_storages() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.data = torch.ones(3, device="cuda")
    on("cuda:0", parameter)
    parameter.data = torch.ones(3)
    on("cpu", parameter)
    x = torch.zeros(3, device="cuda:1")
    storage = storage_of(x)
    storage.resize_(0)
    storage.resize_(12)
    on("cuda:1", x, torch.empty(0, device="cuda:1").set_(storage))


@check
def modules_are_moved() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).cuda()
    on("cuda:0", *model.parameters(), *model.buffers(), model(torch.ones(3, 2).cuda()))
    on("cuda:1", *copy.deepcopy(model).to("cuda:1").parameters())
    on("cpu", *model.cpu().parameters())


@check
def files_keep_the_device_unless_told() -> None:
    file = io.BytesIO()
    torch.save({"a": torch.ones(2, device="cuda:1"), "b": torch.ones(2)}, file)

    def loaded(where: Any) -> dict[str, torch.Tensor]:
        file.seek(0)
        return torch.load(file, map_location=where)

    on("cuda:1", loaded(None)["a"])
    on("cpu", loaded(None)["b"], *loaded("cpu").values())
    on("cuda:0", *loaded("cuda:0").values())
    on("cuda:0", loaded({"cuda:1": "cuda:0"})["a"])
    assert loaded(None)["a"].tolist() == [1, 1]


@check
def threads_have_their_own_device_and_see_marks() -> None:
    x = torch.zeros(2, device="cuda:1")
    torch.cuda.set_device(1)
    seen = []

    def work() -> None:
        seen.append(torch.cuda.current_device())
        torch.cuda.set_device(0)
        seen.extend([str((x + 1).device), str(torch.zeros(1, device="cuda").device)])
        try:
            x + torch.zeros(2)
        except RuntimeError:
            seen.append("refused")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, "cuda:1", "cuda:0", "refused"], seen
    assert torch.cuda.current_device() == 1
    torch.cuda.set_device(0)


@check
def forks_see_marks() -> None:
    x = torch.zeros(2, device="cuda:1")
    child = os.fork()
    if not child:
        os._exit(0 if x.is_cuda and (x + 1).is_cuda and not torch.zeros(2).is_cuda else 1)
    assert os.waitpid(child, 0)[1] == 0


# Devices


@check
def devices_do_not_mix() -> None:
    here, there, cpu = (torch.ones(2, 2, device=d) for d in ("cuda:0", "cuda:1", "cpu"))
    for call in (torch.add, torch.mm, torch.maximum, lambda a, b: torch.cat([a, b])):
        for other in (there, cpu):
            refused("same device.*at least two devices, cuda:0 and ", lambda: call(here, other))  # noqa: B023
    refused("same device", lambda: cpu.add_(here))
    refused("same device", lambda: nn.functional.linear(cpu, here))
    refused("same device", lambda: nn.Embedding(3, 2).cuda()(torch.tensor([0, 1])))
    on("cuda:0", here + torch.tensor(1.0), torch.tensor(2.0) * here, here.clamp(min=1.0))
    refused("same device", lambda: torch.tensor(1.0).add_(here[0, 0]))
    refused("same device", lambda: cpu + here[0, 0])
    on("cuda:0", here[torch.tensor([0])], here[torch.tensor([True, False])])
    refused("same device", lambda: cpu[torch.tensor([0], device="cuda")])
    cpu.copy_(here)
    on("cpu", cpu)


@check
def moves_are_copies_unless_it_is_there() -> None:
    x = torch.arange(4.0, device="cuda")
    assert x.to("cuda") is x and x.cuda() is x and x.to("cuda:0", torch.float32) is x
    assert x.to("cuda", copy=True) is not x
    moved = x.cpu()
    moved.zero_()
    assert x.tolist() == [0, 1, 2, 3] and moved.cpu() is moved and moved.to("cpu") is moved
    on("cuda:1", x.to("cuda:1"), x.to(1), x.to(torch.ones(1, device="cuda:1")), moved.cuda(1))
    assert x.to("cuda:1", torch.float16, non_blocking=True).dtype == torch.float16
    with torch.cuda.device(1):
        on("cuda:1", moved.cuda(), torch.zeros(1, device="cuda"))
    refused("invalid device ordinal", lambda: torch.zeros(1, device="cuda:2"))
    refused("convert cuda:0 device type tensor to numpy", x.numpy)
    assert x.type() == "torch.cuda.FloatTensor" and "device='cuda:0'" in repr(x)


@check
def gradients_are_on_the_devices_of_their_leaves() -> None:
    leaf = torch.ones(4, 3, requires_grad=True)
    first, _ = leaf.cuda().chunk(2)  # nothing comes back for the other
    first.sum().backward()
    on("cpu", leaf.grad)
    assert leaf.grad.sum() == 6
    leaf = torch.ones(4, 3, requires_grad=True, device="cuda:1")
    seen = []
    leaf.register_hook(lambda gradient: seen.extend([gradient, torch.zeros(1)]))
    leaf.unbind()[0].sum().backward()
    on("cuda:1", leaf.grad, seen[0])
    on("cpu", seen[1])
    refused("different device", lambda: setattr(leaf, "grad", torch.zeros(4, 3)))


@check
def a_number_alone_names_a_device() -> None:
    assert torch.device(1) == torch.device("cuda", 1)
    assert isinstance(torch.device("cpu"), torch.device)
    assert copy.deepcopy(torch.device(1)) == torch.device("cuda:1")
    on("cuda:1", torch.zeros(1, device=1), torch.tensor([1.0], device=1), torch.ones(1).to(1))
    on("cuda:1", torch.empty_like(torch.ones(1), device=1), nn.Linear(1, 1).to(1).weight)


@check
def blocks_of_a_device_hold() -> None:
    outside, on_cuda = torch.ones(1), torch.ones(1, device="cuda:1")
    with torch.device("cuda", 1):
        on("cuda:1", torch.ones(1), torch.tensor([1.0]), torch.zeros_like(outside))
        on("cuda:1", torch.as_tensor([1.0]), nn.Linear(1, 1).weight)
    with torch.device("meta"):
        on("meta", torch.ones(1), torch.tensor([1.0]), torch.zeros_like(on_cuda))
        on("cuda:1", on_cuda.new_zeros(1))
    on("cuda:0", nn.Linear(1, 1, device="meta").to_empty(device="cuda").weight)


@check
def what_autograd_makes_itself_is_where_the_pass_is() -> None:
    whole = torch.ones(2, device="cuda", requires_grad=True)
    used, _ = whole.split(1)  # the gradient of the other one is made in C++
    used.cpu().sum().backward()
    assert whole.grad is not None
    on("cuda:0", whole.grad)
    assert whole.grad.tolist() == [1, 0]


@check
def fake_tensors_are_on_the_device_that_they_name() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        on_cuda, on_cpu = torch.ones(1, device="cuda"), torch.ones(1)
        on("cuda:0", on_cuda + 1, on_cpu.cuda(), mode.from_tensor(torch.ones(1).cuda()))
        on("cpu", on_cpu + 1, on_cuda.cpu())
        refused("device", lambda: on_cuda + on_cpu)


@check
def scripts_find_what_is_replaced() -> None:
    on("cpu", torch.jit.script(scripted)(torch.ones(1)))


def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x) + torch.zeros([1]) + torch.tensor([1.0])


@check
def dtensors_are_where_their_shards_are() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def each(rank: int) -> None:
        mesh = init_device_mesh("cuda", (2,))
        whole = distribute_tensor(torch.arange(4.0, device="cuda"), mesh, [Shard(0)])
        on(f"cuda:{rank}", whole, whole.to_local(), whole + 1, torch.zeros_like(whole))
        on("cpu", whole.cpu(), whole.cpu().to_local(), whole.to("cpu").half())
        on(f"cuda:{rank}", whole.cpu().cuda().to_local())
        assert whole.full_tensor().tolist() == [0, 1, 2, 3]
        parameter = nn.Parameter(whole)
        (parameter.cpu() * 2).sum().backward()
        on(f"cuda:{rank}", parameter.grad, parameter.grad.to_local())

    in_two_processes(each)


@check
def random_numbers_are_a_devices_own() -> None:
    torch.manual_seed(3)
    cpu = torch.rand(2)
    torch.manual_seed(3)
    on_cuda = [torch.rand(2, device="cuda") for _ in range(2)]
    assert torch.equal(torch.rand(2), cpu)
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    again = torch.rand(2, device="cuda")
    assert torch.equal(again, on_cuda[0])
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.empty(2, device="cuda").uniform_(), again)


@check
def memory_is_pinned_or_not() -> None:
    x = torch.zeros(4)
    pinned = x.pin_memory()
    assert not x.is_pinned() and pinned.is_pinned() and pinned[1:].is_pinned()
    assert pinned.pin_memory() is pinned
    assert torch.zeros(2, pin_memory=True).is_pinned() and not pinned.clone().is_pinned()
    refused("cannot pin", x.cuda().pin_memory)
    assert not pinned.cuda().is_pinned()


@check
def memory_is_counted() -> None:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.zeros(1 << 20, device="cuda")
    other = torch.zeros(1 << 20, device="cuda:1")
    assert torch.cuda.memory_allocated() - before == 4 << 20
    storage_of(x).resize_(0)
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() - before == 4 << 20
    assert 4 * other.numel() <= torch.cuda.memory_allocated(1)


# Streams


@check
def streams_keep_a_virtual_time() -> None:
    def between(work: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        for stream in (one, two):
            torch.cuda.current_stream().wait_stream(stream)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    seconds = 1_000_000_000  # in cycles: a real wait of that many would be noticed

    def beside() -> None:
        for stream in (one, two):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(3600 * seconds)

    def after() -> None:
        with torch.cuda.stream(one):
            torch.cuda._sleep(3600 * seconds)
        two.wait_stream(one)
        with torch.cuda.stream(two):
            torch.cuda._sleep(3600 * seconds)

    once, twice = between(beside), between(after)
    hour = 3600 * 1000
    assert hour <= once < 1.5 * hour and 2 * hour <= twice < 2.5 * hour, (once, twice)
    torch.cuda._sleep(3600 * seconds)
    event = torch.cuda.current_stream().record_event()
    assert not event.query() and not torch.cuda.current_stream().query()
    event.synchronize()
    assert event.query() and torch.cuda.current_stream().query()
    with torch.cuda.stream(one):
        assert torch.cuda.current_stream() == one
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


# Kernels


@check
def only_a_missing_kernel_is_computed_in_float32() -> None:
    x = torch.randn(1, 1, 2, 4, 4).half()
    # None of the torches here has it for the CPU, and CUDA has it.
    refused("not implemented for 'Half'", lambda: nn.functional.avg_pool3d(x, 2))
    for _ in range(2):
        leaf = x.cuda().requires_grad_()
        pooled = nn.functional.avg_pool3d(leaf, 2)
        on("cuda:0", pooled)
        assert torch.equal(pooled.cpu(), nn.functional.avg_pool3d(x.float(), 2).half())
        pooled.sum().backward()
        assert torch.equal(leaf.grad.cpu(), torch.full_like(x, 0.125))
    scores, target = torch.randn(2, 3, device="cuda").half(), torch.tensor([0, 1], device="cuda")
    loss = nn.functional.multi_margin_loss
    assert loss(scores, target).dtype == torch.float16
    weight = torch.ones(3, device="cuda")
    refused("scalar type Half but found Float", lambda: loss(scores, target, weight=weight))
    # CUDA has none either.
    refused("not implemented for 'Half'", lambda: scores.bitwise_and(scores))
    refused("not implemented for 'Half'", lambda: torch.pdist(scores))


@check
def dtypes_do_not_mix() -> None:
    x, weight = torch.ones(2, 2, device="cuda").half(), torch.ones(2, 2, device="cuda")
    refused("dtype|scalar type", lambda: nn.functional.linear(x, weight))
    refused("dtype|scalar type|type", lambda: nn.functional.conv1d(x[None], weight[None]))
    refused("scalar type", lambda: nn.LayerNorm(2).cuda()(x))
    refused("scalar type", lambda: nn.LayerNorm(2).cuda()(x.bfloat16()))
    assert nn.BatchNorm1d(2).cuda()(x).dtype == torch.float16


@check
def batch_norm_takes_its_statistics_in_float32() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        torch.manual_seed(0)
        whole, low = nn.BatchNorm1d(3).cuda(), nn.BatchNorm1d(3).cuda()
        low.weight.data, low.bias.data = low.weight.to(dtype), low.bias.to(dtype)
        x = torch.randn(4, 3, device="cuda").to(dtype)
        expected, given = x.float().requires_grad_(), x.clone().requires_grad_()
        whole(expected).square().sum().backward()
        out = low(given)
        assert out.dtype == dtype and low.running_mean.dtype == torch.float32
        torch.testing.assert_close(low.running_mean, whole.running_mean)
        torch.testing.assert_close(low.running_var, whole.running_var)
        out.square().sum().backward()
        assert given.grad.dtype == low.weight.grad.dtype == dtype
        near = {"rtol": 0.02, "atol": 0.05, "check_dtype": False}
        torch.testing.assert_close(low.weight.grad, whole.weight.grad, **near)
        torch.testing.assert_close(given.grad, expected.grad, **near)
        # Not so on its way back where channels are not last.
        flat = nn.BatchNorm2d(3).cuda()
        flat.weight.data, flat.bias.data = flat.weight.to(dtype), flat.bias.to(dtype)
        out = flat(torch.randn(2, 3, 4, 4, device="cuda").to(dtype).requires_grad_())
        refused("Expected running_mean to have type", out.sum().backward)
        flat.running_mean, flat.running_var = (
            flat.running_mean.to(dtype),
            flat.running_var.to(dtype),
        )
        flat(torch.randn(2, 3, 4, 4, device="cuda").to(dtype).requires_grad_()).sum().backward()


@check
def autocast_does_as_cudas() -> None:
    linear, norm = nn.Linear(4, 4).cuda(), nn.LayerNorm(4).cuda()
    x = torch.randn(3, 4, device="cuda")
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype=dtype):
            y = linear(x)
            assert y.dtype == dtype and (y @ y.t()).dtype == dtype and torch.relu(y).dtype == dtype
            assert norm(y).dtype == y.softmax(1).dtype == y.sum().dtype == torch.float32
            assert nn.functional.mse_loss(y, y).dtype == torch.float32
            assert torch.addcmul(x, y, y).dtype == torch.float32
            assert nn.Linear(4, 4)(x.cpu()).dtype == torch.float32  # that is on the CPU
            with torch.autocast("cuda", enabled=False):
                assert linear(x).dtype == torch.float32
        assert torch.equal(
            y, nn.functional.linear(x.to(dtype), linear.weight.to(dtype), linear.bias.to(dtype))
        )
    norm(y.float()).sum().backward()
    assert linear.weight.grad.dtype == torch.float32
    assert linear(x).dtype == torch.float32 and not torch.is_autocast_enabled()


@check
def grad_scaler_skips_what_overflows() -> None:
    scaler = torch.cuda.amp.GradScaler(init_scale=8.0, growth_interval=2)
    weight = nn.Parameter(torch.ones(2, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scales = []
    for factor in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append((scaler.get_scale(), weight.tolist()))
    assert scales == [(8, [0, 0]), (4, [0, 0]), (4, [-1, -1]), (8, [-2, -2])], scales


# Collectives


@check
def nccl_refuses_what_is_on_the_cpu() -> None:
    def each(rank: int) -> None:
        cpu, here = torch.ones(2), torch.ones(2, device="cuda")
        both = torch.zeros(4, device="cuda")
        for call in (
            lambda: dist.all_reduce(cpu),
            lambda: dist.broadcast(cpu, 0),
            lambda: dist.reduce(cpu, 0),
            lambda: dist.all_gather([here, here.clone()], cpu),
            lambda: dist.all_gather([cpu, cpu.clone()], here),
            lambda: dist.all_gather_into_tensor(both, cpu),
            lambda: dist.reduce_scatter_tensor(cpu, both),
            lambda: dist.reduce_scatter(here, [cpu, cpu]),
            lambda: (
                dist.scatter(here, [cpu, cpu] if rank == 0 else None)
                if rank == 0
                else dist.scatter(cpu)
            ),
            lambda: dist.all_to_all_single(both, torch.zeros(4)),
        ):
            refused("CPU|CUDA|cpu|cuda", call)

    in_two_processes(each)


@check
def nccl_computes() -> None:
    def each(rank: int) -> None:
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
            mine = torch.full((2,), rank + 1, device="cuda", dtype=dtype)
            summed, both = mine.clone(), torch.zeros(4, device="cuda", dtype=dtype)
            dist.all_reduce(summed)
            assert summed.tolist() == [3, 3]
            dist.all_gather_into_tensor(both, mine)
            assert both.tolist() == [1, 1, 2, 2]
            part = torch.zeros(2, device="cuda", dtype=dtype)
            dist.reduce_scatter_tensor(part, both * (rank + 1))
            assert part.tolist() == [[3, 3], [6, 6]][rank]
            copies = [torch.zeros_like(mine) for _ in range(2)]
            dist.all_gather(copies, mine)
            dist.broadcast(mine, 1)
            assert [c.tolist() for c in copies] == [[1, 1], [2, 2]] and mine.tolist() == [2, 2]
            on(f"cuda:{rank}", summed, both, part, mine, *copies)
        average = torch.full((2,), rank + 1.0, device="cuda")
        dist.all_reduce(average, op=dist.ReduceOp.AVG)
        assert average.tolist() == [1.5, 1.5]
        halves, half = torch.tensor([1.0, 2.0], device="cuda") * (rank + 1), average[:1].clone()
        dist.reduce_scatter_tensor(half, halves, op=dist.ReduceOp.AVG)
        assert half.tolist() == [[1.5], [3.0]][rank]
        if hasattr(dist.ProcessGroup, "_register_backend"):
            from torch.distributed.tensor.debug import CommDebugMode

            with CommDebugMode() as counted:
                dist.reduce_scatter_tensor(half, halves, op=dist.ReduceOp.AVG)
            assert list(counted.get_comm_counts().values()) == [1], counted.get_comm_counts()
        objects = [None, None]
        dist.all_gather_object(objects, {"rank": rank, "x": torch.ones(1, device="cuda")})
        assert [one["rank"] for one in objects] == [0, 1]
        said = ["from 0" if rank == 0 else None]
        dist.broadcast_object_list(said, 0)
        assert said == ["from 0"]
        dist.barrier()

    in_two_processes(each)


@check
def functional_collectives_are_nccls() -> None:
    from torch.distributed import _functional_collectives as functional

    def each(rank: int) -> None:
        world = dist.group.WORLD
        x = torch.tensor([1.0, 2.0], device="cuda") * (rank + 1)
        part = functional.reduce_scatter_tensor(x, "avg", 0, world)
        assert part.tolist() == [[1.5], [3.0]][rank]
        assert functional.all_reduce(x, "avg", world).tolist() == [1.5, 3]
        assert functional.all_reduce(x, "sum", world).tolist() == [3, 6]
        on(f"cuda:{rank}", functional.all_gather_tensor(part, 0, world) + 0)
        refused("must be CUDA", lambda: functional.all_reduce(x.cpu(), "sum", world))

    in_two_processes(each)


@check
def sync_batch_norm_is_batch_norm_of_the_whole() -> None:
    torch.manual_seed(0)
    whole, upstream = (
        torch.randn(6, 3, 4, dtype=torch.float64),
        torch.randn(6, 3, 4, dtype=torch.float64),
    )
    reference = nn.BatchNorm1d(3).double()
    reference.weight.data.uniform_(0.5, 2)
    state = copy.deepcopy(reference.state_dict())
    whole.requires_grad_()
    expected = reference(whole)
    expected.backward(upstream)

    def each(rank: int) -> None:
        mine = slice(0, 2) if rank == 0 else slice(2, 6)
        norm = nn.SyncBatchNorm(3).double()
        norm.load_state_dict(state)
        norm.cuda()
        x = whole.detach()[mine].cuda().requires_grad_()
        y = norm(x)
        y.backward(upstream[mine].cuda())
        torch.testing.assert_close(y.cpu(), expected[mine])
        torch.testing.assert_close(x.grad.cpu(), whole.grad[mine])
        dist.all_reduce(norm.weight.grad)
        torch.testing.assert_close(norm.weight.grad.cpu(), reference.weight.grad)
        torch.testing.assert_close(norm.running_var.cpu(), reference.running_var)
        torch.testing.assert_close(norm.running_mean.cpu(), reference.running_mean)

    in_two_processes(each)


@check
def ddp_averages_gradients() -> None:
    def each(rank: int) -> None:
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).cuda(), device_ids=[rank])
        for _ in range(3):  # its buckets are made anew after the first
            model.zero_grad()
            model(torch.full((1, 2), rank + 1.0, device="cuda")).sum().backward()
            assert model.module.weight.grad.tolist() == [[1.5, 1.5]]
            on(f"cuda:{rank}", model.module.weight.grad)

    in_two_processes(each)


def main() -> None:
    results = {}
    for name, function in CHECKS.items():
        try:
            function()
        except Exception:
            results[name] = traceback.format_exc()
        else:
            results[name] = ""
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
