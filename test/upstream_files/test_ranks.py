"""Tests with every way to end, as upstream writes them; run by the tests of the runner."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import (
    TEST_SKIPS,
    MultiProcessTestCase,
    skip_if_lt_x_gpu,
)


class TestRanks(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def start(self):
        place = f"file://{self.file_name}"
        dist.init_process_group("gloo", init_method=place, rank=self.rank, world_size=2)

    def test_passes(self):
        self.start()
        x = torch.full((2,), self.rank + 1.0, requires_grad=True)
        (x * x).sum().backward()
        dist.all_reduce(x.grad)
        self.assertEqual(x.grad.tolist(), [6.0, 6.0])

    def test_fails_in_one_rank(self):
        self.start()
        print(f"rank {self.rank} prints this")
        dist.barrier()
        if self.rank == 1:
            self.assertEqual(1, 2)

    def test_is_skipped_in_its_ranks(self):
        sys.exit(TEST_SKIPS["small_worldsize"].exit_code)

    @skip_if_lt_x_gpu(7)
    def test_is_skipped_by_a_decorator(self):
        raise AssertionError

    def test_loses_a_rank(self):
        self.start()
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    def test_loses_a_rank_and_skips_in_the_other(self):
        if self.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(TEST_SKIPS["small_worldsize"].exit_code)

    def test_draws_as_a_new_interpreter_does(self):
        self.fail(f"drew {torch.rand(1).item():.6f}")
