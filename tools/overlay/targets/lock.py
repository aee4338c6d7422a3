"""Keeps two tools away from one target, and leaves no file behind."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from overlay.errors import TargetError

if sys.platform == "win32":
    from filelock import FileLock, Timeout

    def _acquire(path: Path) -> FileLock | None:
        path.parent.mkdir(exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def _release(path: Path, lock: FileLock) -> None:
        lock.release()
        with suppress(OSError):
            path.unlink()

else:
    import fcntl

    # Not filelock here: a lock file that is removed needs the check that the file which was
    # locked is still the one that others would open.
    def _acquire(path: Path) -> int | None:
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(fd), os.stat(path)):
                raise BlockingIOError
            with suppress(OSError):  # It only tells others whom they wait for.
                os.ftruncate(fd, 0)
                os.write(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _release(path: Path, fd: int) -> None:
        with suppress(OSError):
            path.unlink()
        os.close(fd)


@contextmanager
def lock_file(path: Path, wait: float) -> Iterator[None]:
    """Hold the lock at ``path``; its folder is made, and removed again if it stays empty.

    Raises TargetError, which names the holder, after ``wait`` seconds.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            held = _acquire(path)
        except OSError as error:
            # Another holder makes the folder or removes it at any time.
            passing = isinstance(error, (FileNotFoundError, FileExistsError))
            if not passing or time.monotonic() >= deadline:
                with suppress(OSError):
                    path.parent.rmdir()
                raise TargetError(
                    f"cannot lock {path}: {error.strerror}; nothing was changed"
                ) from error
            held = None
        if held is not None:
            break
        if time.monotonic() >= deadline:
            raise TargetError(
                f"{path.parent.parent} is in use by another torch-overlay"
                f" ({_holder(path)}); try again when it has ended"
            )
        time.sleep(0.05)
    try:
        yield
    finally:
        _release(path, held)
        with suppress(OSError):
            path.parent.rmdir()


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip() or "unknown process"
    return "unknown process"
