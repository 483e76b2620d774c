"""A full memory fence: every other processor sees the memory accesses before it before those after
it.

    writer                        reader
    sequence ← odd                sequence, version
    ─── fence ───                 ─── fence ───
    copy the weights              copy the weights
    ─── fence ───                 ─── fence ───
    version, sequence ← even      sequence, version again

``ring.py`` says why a seqlock needs this. Python has no fence, and a lock is no substitute:
acquiring one keeps later accesses after it, and releasing one keeps earlier accesses before it, but
neither orders the accesses before it against those after it. So ``fence`` calls the first of these
that the system has:

    libatomic             ``atomic_thread_fence`` of C11, sequentially consistent; part of GCC's runtime, which is not everywhere
    membarrier(2)         Linux 4.16 or newer: the call is a full fence for its caller, and is ordered with that of any other process
    OSMemoryBarrier       macOS
    nothing               on x86 only, where none is needed
"""

import ctypes
import functools
import platform
import sys
from collections.abc import Callable

SEQUENTIALLY_CONSISTENT = 5
"""``__ATOMIC_SEQ_CST``: GCC's and Clang's number for that memory order."""
MEMBARRIER_QUERY, MEMBARRIER_GLOBAL_EXPEDITED = 0, 2
MEMBARRIER_CALLS = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
"""The number of the system call on each processor; C libraries have no function for it."""
KEEPS_ORDER = ("x86_64", "amd64", "i386", "i686")

Fence = Callable[[], object]


class NoFence(RuntimeError):
    """This machine reorders memory accesses, and the system offers no fence."""


def fence() -> None:
    """Complete all memory accesses before this call before any that follows it. Takes about a
    microsecond.

    Raises NoFence if this machine needs a fence and has none.
    """
    _fence()()


@functools.cache
def _fence() -> Fence:
    return choose(platform.machine().lower(), (libatomic, membarrier, os_memory_barrier))


def choose(machine: str, sources: tuple[Callable[[], Fence], ...]) -> Fence:
    """Return the first fence of ``sources`` that this system has. Raises NoFence if none has one
    and ``machine`` needs one."""
    for source in sources:
        try:
            return source()
        except (OSError, AttributeError):
            continue
    if machine in KEEPS_ORDER:
        return lambda: None
    raise NoFence(
        f"weights cannot be shared safely on this {machine} machine: it has neither libatomic nor the system call membarrier; "
        "install libatomic (the package libatomic1 on Debian and Ubuntu)"
    )


def libatomic() -> Fence:
    """Return the fence of GCC's library. Raises OSError where that is not installed."""
    function = ctypes.CDLL("libatomic.so.1").atomic_thread_fence
    function.argtypes, function.restype = [ctypes.c_int], None
    return functools.partial(function, SEQUENTIALLY_CONSISTENT)


def membarrier() -> Fence:
    """Return the fence of Linux. Raises OSError where the kernel does not have it."""
    number = MEMBARRIER_CALLS.get(platform.machine())
    if sys.platform != "linux" or number is None:
        raise OSError("no system call membarrier here")
    syscall = ctypes.CDLL(None).syscall
    syscall.argtypes, syscall.restype = [ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int], ctypes.c_long
    supported = syscall(number, MEMBARRIER_QUERY, 0, 0)
    if supported < 0 or not supported & MEMBARRIER_GLOBAL_EXPEDITED:
        raise OSError("the kernel does not allow membarrier")
    return functools.partial(syscall, number, MEMBARRIER_GLOBAL_EXPEDITED, 0, 0)


def os_memory_barrier() -> Fence:
    """Return the fence of macOS. Raises AttributeError elsewhere."""
    function = ctypes.CDLL(None).OSMemoryBarrier
    function.argtypes, function.restype = [], None
    return function
