"""Which storages are "on CUDA", and which memory is pinned."""

import torch

_Storage = torch.UntypedStorage if hasattr(torch, "UntypedStorage") else torch._UntypedStorage
_PURGE_EVERY = 2000


class Marks:
    """Marks on storages, that go with them.

    A storage is known by its address. A weak reference keeps a dead storage's address from being
    given to another one until its mark has been dropped.
    """

    def __init__(self):
        self._marked = {}
        self._since_purge = 0

    def get(self, storage):
        """What a storage is marked with, or None."""
        return self._marked.get(storage._cdata)

    def set(self, storage, value):
        """Mark a storage, in place of any mark that it has."""
        address = storage._cdata
        if address not in self._marked:
            storage._weak_ref()
            self._since_purge += 1
        self._marked[address] = value
        if self._since_purge >= _PURGE_EVERY:
            self._purge()

    def drop(self, storage):
        """Take a storage's mark away."""
        if self._marked.pop(storage._cdata, None) is not None:
            _Storage._free_weak_ref(storage._cdata)

    def sizes(self):
        """The bytes of each live marked storage with its mark."""
        self._purge()
        for address, value in list(self._marked.items()):
            storage = _Storage._new_with_weak_ptr(address)
            if storage is not None:
                yield storage.nbytes(), value

    def _purge(self):
        for address in [a for a in self._marked if _Storage._expired(a)]:
            del self._marked[address]
            _Storage._free_weak_ref(address)
        self._since_purge = 0


ON_CUDA = Marks()
"""Storage to the index of its device."""
PINNED = Marks()

_on_cuda = ON_CUDA._marked

# Captured before anything is replaced.
_storage_of = (
    getattr(torch._C._TensorBase, "untyped_storage", None) or torch._C._TensorBase._storage
)


def storage_of(tensor):
    """A tensor's storage, or None if it has none (a sparse tensor, or a wrapper)."""
    try:
        return _storage_of(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def index_of(tensor):
    """The CUDA device that a tensor is on, or None."""
    try:  # every operation asks this of every tensor
        return _on_cuda.get(_storage_of(tensor)._cdata)
    except (RuntimeError, NotImplementedError):
        return None
