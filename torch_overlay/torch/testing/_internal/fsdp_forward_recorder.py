"""
A module that records what the forward of the module in it receives. It records
only: what the records should hold is for the test to assert.
"""

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple

import torch
import torch.nn as nn


@dataclass
class ForwardRecord:
    """
    What one call of a forward received.

    Attributes:
        leaves: All that is no ``dict``, ``list`` or ``tuple`` in the arguments,
            by its place, for example ``args[0]`` or ``kwargs['mask'][1]``. These
            are the received objects themselves.
        param_dtypes: The dtype, during the call, of each parameter that the
            module owns directly.
        grad_enabled: Whether gradients were on.
    """

    leaves: Dict[str, Any]
    param_dtypes: Dict[str, torch.dtype]
    grad_enabled: bool

    @property
    def dtypes(self) -> Dict[str, torch.dtype]:
        """The dtype of each tensor in ``leaves``."""
        return {
            place: leaf.dtype
            for place, leaf in self.leaves.items()
            if isinstance(leaf, torch.Tensor)
        }


class ForwardRecorder(nn.Module):
    """Runs ``module`` and appends a :class:`ForwardRecord` to ``records`` each time."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.records: List[ForwardRecord] = []
        # In forward, FSDP may have plain tensors in the place of the parameters
        self._param_names = [name for name, _ in module.named_parameters(recurse=False)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves = dict(_leaves("args", args))
        leaves.update(_leaves("kwargs", kwargs))
        self.records.append(
            ForwardRecord(
                leaves,
                {name: getattr(self.module, name).dtype for name in self._param_names},
                torch.is_grad_enabled(),
            )
        )
        return self.module(*args, **kwargs)


def _leaves(place: str, value: Any) -> Iterator[Tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{place}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(f"{place}[{index}]", item)
    else:
        yield place, value
