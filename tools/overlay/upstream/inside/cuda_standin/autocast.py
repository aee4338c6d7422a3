"""Autocasting on CUDA.

The CPU has autocasting of its own, with other dtypes for other operations. Where the dispatcher
calls its kernels for that, it finds these instead, which do what CUDA's do.
"""

import warnings

import torch
from torch.utils._pytree import tree_map

from cuda_standin.kernels import tensors_in

# As torch documents it: https://pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior
_LOWERED = """
    _convolution addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d convolution gru_cell linalg_multi_dot
    linalg_vecdot linear lstm_cell matmul mm mv prelu rnn_relu_cell rnn_tanh_cell
    scaled_dot_product_attention
"""
_RAISED = """
    acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity
    cross_entropy_loss cumprod cumsum dist erfinv exp expm1 fft_fft fft_ifft fft_rfft fft_irfft
    group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm log log10 log1p log2
    log_softmax logsumexp margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
    native_layer_norm nll_loss nll_loss2d norm pdist poisson_nll_loss pow prod reciprocal renorm
    rsqrt sinh smooth_l1_loss soft_margin_loss softmax softplus sum tan triplet_margin_loss
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d
"""
_PROMOTED = """
    addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
"""

_library = None
_by_device = hasattr(torch, "get_autocast_dtype")
_own_set_enabled, _own_is_enabled = torch.set_autocast_enabled, torch.is_autocast_enabled


def _set_kernels_used(enabled):
    if _by_device:
        _own_set_enabled("cpu", enabled)
    else:
        _own_set_cpu_enabled(enabled)


def _register():
    global _library  # its kernels go with it
    _library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    rules = dict.fromkeys(_LOWERED.split(), lambda tensors: torch.get_autocast_gpu_dtype())
    rules.update(dict.fromkeys(_RAISED.split(), lambda tensors: torch.float32))
    rules.update(dict.fromkeys(_PROMOTED.split(), _widest))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they take the place of the CPU's is meant
        for schema in torch._C._jit_get_all_schemas():
            namespace, _, name = schema.name.partition("::")
            full_name = f"{schema.name}.{schema.overload_name}".rstrip(".")
            if namespace != "aten" or "out" in schema.overload_name:
                continue
            if not torch._C._dispatch_has_kernel(full_name):
                continue  # TorchScript's alone
            is_the_cpus = torch._C._dispatch_has_kernel_for_dispatch_key(full_name, "AutocastCPU")
            if name in rules or is_the_cpus:
                operation = getattr(
                    getattr(torch.ops.aten, name), schema.overload_name or "default"
                )
                _library.impl(operation, _kernel(operation, rules.get(name)))


def _widest(tensors):
    lowered = torch.get_autocast_gpu_dtype()
    return torch.float32 if any(t.dtype == torch.float32 for t in tensors) else lowered


def _kernel(operation, rule):
    def kernel(*args, **kwargs):
        _set_kernels_used(False)
        try:
            if rule is not None:
                dtype = rule(tensors_in(args, kwargs))
                cast = lambda value: value.to(dtype) if _is_cast(value) else value  # noqa: E731
                args, kwargs = tree_map(cast, args), tree_map(cast, kwargs)
            return operation(*args, **kwargs)
        finally:
            _set_kernels_used(True)

    return kernel


def _is_cast(value):
    return (
        isinstance(value, torch.Tensor)
        and value.is_cuda
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def _set_enabled(*device_and_enabled):
    *device, enabled = device_and_enabled
    if device == ["cpu"]:
        _set_cpu_enabled(enabled)
        return
    _own_set_enabled(*device_and_enabled)
    if device in ([], ["cuda"]):
        if enabled and _library is None:
            _register()
        _set_kernels_used(enabled)


def _is_enabled(*device):
    return False if device == ("cpu",) else _own_is_enabled(*device)


def _set_cpu_enabled(enabled):
    if enabled:
        raise NotImplementedError("the CUDA stand-in has no autocasting for tensors on the CPU")


def install():
    """Give ``torch.autocast("cuda")`` its kernels."""
    global _own_set_cpu_enabled
    _own_set_cpu_enabled = torch.set_autocast_cpu_enabled
    torch.set_autocast_enabled, torch.is_autocast_enabled = _set_enabled, _is_enabled
    torch.set_autocast_cpu_enabled = _set_cpu_enabled
    torch.is_autocast_cpu_enabled = lambda: False
