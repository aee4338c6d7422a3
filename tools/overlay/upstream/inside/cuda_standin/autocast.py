"""Autocasting on CUDA: the CPU's, told to use float16."""

import torch


def install():
    """Make ``torch.autocast("cuda")`` work on tensors in ordinary memory."""
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    def enter_both(self):
        if self.device == "cuda" and not torch._jit_internal.is_scripting():
            self._cpu_before = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
            torch.set_autocast_cpu_enabled(self._enabled)
            torch.set_autocast_cpu_dtype(self.fast_dtype)
        return enter(self)

    def leave_both(self, *error):
        if self.device == "cuda" and not torch._jit_internal.is_scripting():
            enabled, dtype = self._cpu_before
            torch.set_autocast_cpu_enabled(enabled)
            torch.set_autocast_cpu_dtype(dtype)
        return leave(self, *error)

    torch.autocast.__enter__, torch.autocast.__exit__ = enter_both, leave_both
