import torch.distributed as c10d
from torch.testing._internal.common_utils import TestCase


class MultiProcessTestCase(TestCase):
    """Where upstream keeps what distributed tests share."""

    def init(self):
        c10d.barrier()
