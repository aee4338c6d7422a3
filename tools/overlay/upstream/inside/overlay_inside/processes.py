"""Processes that tests start, and what they leave behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SHARED_MEMORY = "/dev/shm"
# As torch, Python's shared_memory and semaphores, and NCCL name theirs.
_OURS = ("torch_", "psm_", "sem.mp-", "nccl-")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none gets away."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Let this process be killed when the one that forked it ends, in whatever way."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def children(parent: int) -> list[int]:
    """The processes that a process is the parent of, zombies too."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            # It may be gone by now.
            with suppress(OSError), open(f"/proc/{name}/stat") as stat:
                # The name before it, in parentheses, may hold spaces.
                if int(stat.read().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(name))
    return found


def descendants(parent: int) -> list[int]:
    """Children, their children and so on."""
    found = children(parent)
    for pid in found:
        found.extend(children(pid))
    return found


def has_threads() -> bool:
    """Whether this process has other threads than the one that asks: it must not fork then."""
    with suppress(OSError):
        return len(os.listdir("/proc/self/task")) > 1
    return False


def say_where_they_stand(parent: int) -> None:
    """Let what hangs below a process write its stacks, where it has a handler for that."""
    for pid in descendants(parent):
        with suppress(OSError):
            if _handles(pid, signal.SIGUSR1):
                os.kill(pid, signal.SIGUSR1)
    time.sleep(0.3)


def _handles(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def end_children() -> None:
    """Kill all children of this process, and all that thereby become its children."""
    while True:
        found = children(os.getpid())
        if not found:
            return
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with suppress(OSError):
                os.waitpid(pid, 0)


def ending(status: int) -> str:
    """What a wait status says, in words."""
    if os.WIFSIGNALED(status):
        return "died of " + signal_name(os.WTERMSIG(status))
    return f"ended with exit code {os.WEXITSTATUS(status)}"


def signal_name(number: int) -> str:
    """As in SIGKILL."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def shared_memory() -> set[str]:
    """The files of shared memory that are there."""
    with suppress(OSError):
        return set(os.listdir(_SHARED_MEMORY))
    return set()


def remove_shared_memory(before: set[str]) -> None:
    """Remove what came since ``before``, is the user's, looks like a test's, and nobody uses."""
    new = [name for name in shared_memory() - before if name.startswith(_OURS)]
    if not new:
        return
    used = _mapped()
    for name in new:
        path = os.path.join(_SHARED_MEMORY, name)
        with suppress(OSError):
            found = os.stat(path)
            if found.st_uid == os.geteuid() and found.st_ino not in used:
                os.unlink(path)


def _mapped() -> set[int]:
    """The inodes of the files of shared memory that some process maps or has open.

    Not their names: a semaphore is mapped by another one than it has afterwards.
    """
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError), open(f"/proc/{name}/maps") as maps:
            # address, permissions, offset, device, inode, path
            found.update(int(line.split()[4]) for line in maps if _SHARED_MEMORY in line)
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{name}/fd"):
                with suppress(OSError):
                    found.add(os.stat(f"/proc/{name}/fd/{fd}").st_ino)
    return found
