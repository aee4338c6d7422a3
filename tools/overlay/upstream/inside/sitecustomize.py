"""Installs the CUDA stand-in in any process that imports torch, if its environment asks for it.

``TORCH_OVERLAY_CUDA_STANDIN`` is the number of devices. Python imports this file at its start
because the folder is on ``PYTHONPATH``; nothing else brings it in.
"""

import importlib.abc
import importlib.util
import os
import sys


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets torch be imported as always, and then installs the stand-in."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        import cuda_standin

        cuda_standin.install(int(os.environ["TORCH_OVERLAY_CUDA_STANDIN"]))


if os.environ.get("TORCH_OVERLAY_CUDA_STANDIN"):
    sys.meta_path.insert(0, _AfterTorch())
