import torch


def _apply_to_tensors(fn, container):
    if isinstance(container, torch.Tensor):
        return fn(container)
    if isinstance(container, dict):
        return {key: _apply_to_tensors(fn, value) for key, value in container.items()}
    if isinstance(container, (list, tuple)):
        return type(container)(_apply_to_tensors(fn, value) for value in container)
    return container


def p_assert(cond, s):
    assert cond, s
