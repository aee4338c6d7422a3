"""How an operation is computed where the CPU has no kernel for it."""

import torch
from torch.utils._pytree import tree_map

_LOW = (torch.float16, torch.bfloat16)
_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float"}
# Here CUDA takes a low-precision input with float32 statistics and weights.
_MIXED_DTYPES = ("batch_norm",)

# Neither the CPU nor CUDA has kernels of low precision for these.
_NOT_ON_CUDA_EITHER = tuple(
    """
    aten::_cdist aten::_cholesky aten::_ctc_loss aten::_det aten::_linalg aten::_lu aten::_pdist
    aten::bincount aten::bitwise aten::cholesky aten::special_bessel aten::special_zeta
    aten::gcd aten::geqrf aten::histogram aten::lcm aten::linalg_cholesky aten::linalg_det
    aten::linalg_eig aten::linalg_inv aten::linalg_ldl aten::linalg_lstsq aten::linalg_lu
    aten::linalg_qr aten::linalg_solve aten::linalg_svd aten::lu_ aten::ormqr aten::triangular_solve
    """.split()
)


def tensors_in(args, kwargs):
    """The tensors among an operation's arguments, in order."""
    found = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend([one for one in value if isinstance(one, torch.Tensor)])
    return found


_lacks = {}
"""For an operation, the low precisions of which the CPU has no kernel, as far as is known.

That of old for norms in float16 sums up in float16, which CUDA's does not.
"""
for _norm in (torch.ops.aten.norm, torch.ops.aten.linalg_vector_norm):
    _lacks.update((getattr(_norm, overload), {torch.float16}) for overload in _norm.overloads())


def run(func, args, kwargs, tensors):
    """Compute for CUDA by the CPU's kernel; in float32 where it lacks this low precision."""
    low = _known_to_be_missing(func, tensors)
    if low is None:
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            low = _missing_precision(str(error)) or _below_statistics(func, tensors)
            if low is None or func._schema.name.startswith(_NOT_ON_CUDA_EITHER):
                raise
    found = _dtypes(tensors)
    if found == {low}:
        _lacks.setdefault(func, set()).add(low)  # finding out takes long
    elif len(found) > 1 and not any(word in str(func) for word in _MIXED_DTYPES):
        raise _mixed_dtypes(found)  # CUDA refuses these, too
    return _in_float32(func, args, kwargs, low, keeps_float32=len(found) > 1)


def _known_to_be_missing(func, tensors):
    if func not in _lacks:
        return None
    found = _dtypes(tensors)
    return next(iter(found)) if len(found) == 1 and found <= _lacks[func] else None


def _dtypes(tensors):
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()}


def _missing_precision(message):
    for dtype in _LOW:
        if f"not implemented for '{_NAMES[dtype]}'" in message:
            return dtype
    return None


def _below_statistics(func, tensors):
    """The precision of a batch norm whose statistics alone are in float32, as CUDA takes it."""
    found = _dtypes(tensors) - {torch.float32}
    if len(found) == 1 and found <= set(_LOW) and any(word in str(func) for word in _MIXED_DTYPES):
        return next(iter(found))
    return None


def _mixed_dtypes(found):
    first, second = sorted(_NAMES.get(dtype, str(dtype)) for dtype in found)[:2]
    return RuntimeError(f"expected scalar type {second} but found {first}")


def _in_float32(func, args, kwargs, low, keeps_float32):
    def up(value):
        if isinstance(value, torch.Tensor) and value.dtype == low:
            return value.float()
        return torch.float32 if value is low else value

    asked = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)]

    def down(value):
        if (
            isinstance(value, torch.Tensor)
            and value.dtype == torch.float32
            and asked in ([], [low])
        ):
            return value.to(low)
        return value

    raised_args, raised_kwargs = tree_map(up, args), tree_map(up, kwargs)
    result = func(*raised_args, **raised_kwargs)
    written = None
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        before, after = (
            (args[position], raised_args[position])
            if position < len(args)
            else (kwargs.get(argument.name), raised_kwargs.get(argument.name))
        )
        pairs = zip(before, after) if isinstance(before, (list, tuple)) else [(before, after)]
        for old, new in pairs:
            if old is not new:
                old.copy_(new)
        written = before
    if written is not None:
        return written if func._schema.returns else None
    if keeps_float32 and isinstance(result, tuple):
        # Statistics stay in float32, as on CUDA.
        return (down(result[0]), *result[1:])
    return tree_map(down, result)


def _of_one_dtype(func, args, kwargs, where):
    """The CPU takes float32 weights with a low-precision input; CUDA does not."""
    if where is None:
        return func(*args, **kwargs)
    tensors = tensors_in(args, kwargs)
    found = {tensor.dtype for tensor in tensors}
    if len(found) > 1:
        raise _mixed_dtypes(found)
    return run(func, args, kwargs, tensors)


def _batch_norm_backward(func, args, kwargs, where):
    """CUDA goes back through statistics of another dtype only where channels are last."""
    _, value, weight, running_mean = args[:4]
    channels_last = value.is_contiguous(memory_format=torch.channels_last) or value.dim() == 2
    if (
        None not in (where, weight, running_mean)
        and not channels_last
        and weight.dtype == value.dtype != running_mean.dtype
    ):
        wanted, found = _NAMES[value.dtype], _NAMES[running_mean.dtype]
        raise RuntimeError(f"Expected running_mean to have type {wanted} but got {found}")
    if where is None:
        return func(*args, **kwargs)
    return run(func, args, kwargs, tensors_in(args, kwargs))


def _batch_norm_stats(func, args, kwargs, where):
    value, eps = args
    dims = [dim for dim in range(value.dim()) if dim != 1]
    value = value.float()
    variance = value.var(dims, unbiased=False)
    return value.mean(dims), torch.rsqrt(variance + eps)


def _gather_stats(func, args, kwargs, where):
    _, mean, invstd, running_mean, running_var, momentum, eps, counts = args
    counts = counts.reshape(-1, 1).to(mean.dtype)
    total = counts.sum()
    whole_mean = (mean * counts).sum(0) / total
    variance = 1 / invstd.square() - eps
    whole_variance = ((variance + (mean - whole_mean).square()) * counts).sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(whole_mean.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = whole_variance * total / (total - 1)
        running_var.mul_(1 - momentum).add_(unbiased.to(running_var.dtype), alpha=momentum)
    return whole_mean, torch.rsqrt(whole_variance + eps)


def _along_channels(value, like):
    return value.reshape(1, -1, *[1] * (like.dim() - 2))


def _normalise(func, args, kwargs, where):
    value, weight, bias, mean, invstd, _ = args
    result = (value.float() - _along_channels(mean, value)) * _along_channels(invstd, value)
    if weight is not None:
        result = result * _along_channels(weight.float(), value)
    if bias is not None:
        result = result + _along_channels(bias.float(), value)
    return result.to(value.dtype)


def _backward_reduce(func, args, kwargs, where):
    gradient, value, mean, invstd, weight, input_g, weight_g, bias_g = args
    dims = [dim for dim in range(value.dim()) if dim != 1]
    gradient, dtype = gradient.float(), (weight.dtype if weight is not None else mean.dtype)
    centred = value.float() - _along_channels(mean, value)
    sum_dy, sum_dy_xmu = gradient.sum(dims), (gradient * centred).sum(dims)
    nothing = torch.empty(0)
    return (
        sum_dy if input_g else nothing,
        sum_dy_xmu if input_g else nothing,
        (sum_dy_xmu * invstd).to(dtype) if weight_g else nothing,
        sum_dy.to(dtype) if bias_g else nothing,
    )


def _backward_elements(func, args, kwargs, where):
    gradient, value, mean, invstd, weight, sum_dy, sum_dy_xmu, counts = args
    total = counts.sum().float()
    scale = invstd if weight is None else invstd * weight.float()
    centred = value.float() - _along_channels(mean, value)
    spread = _along_channels(invstd.square() * sum_dy_xmu / total, value)
    result = gradient.float() - _along_channels(sum_dy / total, value) - centred * spread
    return (result * _along_channels(scale, value)).to(value.dtype)


def _unscale(func, args, kwargs, where):
    gradients, found_inf, inverse_scale = args
    for gradient in gradients:
        if not torch.isfinite(gradient).all():
            found_inf.fill_(1.0)
        gradient.mul_(inverse_scale.to(gradient.dtype) if inverse_scale != 1 else 1)


def _update_scale(func, args, kwargs, where):
    scale, tracker, found_inf, growth, backoff, interval = args
    if found_inf.item():
        scale.mul_(backoff)
        tracker.zero_()
    else:
        successful = int(tracker.item()) + 1
        if successful == interval:
            grown = scale * growth
            if torch.isfinite(grown).all():
                scale.copy_(grown)
            tracker.zero_()
        else:
            tracker.fill_(successful)
    return scale


def _nothing(func, args, kwargs, where):
    return None


OWN = {
    "aten::native_layer_norm": _of_one_dtype,
    "aten::native_group_norm": _of_one_dtype,
    "aten::record_stream": _nothing,
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::batch_norm_stats": _batch_norm_stats,
    "aten::batch_norm_gather_stats_with_counts": _gather_stats,
    "aten::batch_norm_elemt": _normalise,
    "aten::batch_norm_backward_reduce": _backward_reduce,
    "aten::batch_norm_backward_elemt": _backward_elements,
    "aten::_amp_foreach_non_finite_check_and_unscale_": _unscale,
    "aten::_amp_update_scale_": _update_scale,
}
"""What CUDA has and the CPU lacks or does otherwise: ``(func, args, kwargs, device) -> result``."""
