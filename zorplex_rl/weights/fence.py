"""A full memory fence: every other processor sees the memory accesses before it before those after
it. ``ring.py`` says why a seqlock needs one.

Python has no fence, and a lock does not replace it. Acquiring a lock keeps later accesses after it, and
releasing one keeps earlier accesses before it, but neither orders the earlier ones against the later.
So ``fence`` calls the first of these that the system has:

    libatomic          ``atomic_thread_fence`` of C11, sequentially consistent; part of GCC's runtime
    OSMemoryBarrier    macOS
    membarrier(2)      Linux 4.16 or newer: the call is a full fence for its caller
    nothing            on x86 only, which keeps stores in order and loads in order
"""

import ctypes
import functools
import platform
from collections.abc import Callable, Sequence

SEQUENTIALLY_CONSISTENT = 5
"""``__ATOMIC_SEQ_CST`` of GCC and Clang."""
MEMBARRIER_QUERY = 0
MEMBARRIER_GLOBAL_EXPEDITED = 2
MEMBARRIER_CALLS = {"x86_64": 324, "aarch64": 283}
"""The number of the system call, by processor. C libraries have no function for it."""
Fence = Callable[[], object]


def fence() -> None:
    """Complete all memory accesses before this call before any that follows it. Raises RuntimeError
    if this machine needs a fence and has none."""
    _fence()()


@functools.cache
def _fence() -> Fence:
    return choose(platform.machine().lower(), (libatomic, os_memory_barrier, membarrier))


def choose(
    machine: str,
    sources: Sequence[Callable[[], Fence]],
) -> Fence:
    """Return the first fence of ``sources`` that this system has."""
    for source in sources:
        try:
            return source()
        except (OSError, AttributeError, KeyError):
            continue
    if machine in ("x86_64", "amd64"):
        return lambda: None
    raise RuntimeError(
        f"weights cannot be shared safely on this {machine} machine: install libatomic (libatomic1)"
    )


def libatomic() -> Fence:
    """Return the fence of GCC's library. Raises OSError if that is not installed."""
    function = ctypes.CDLL("libatomic.so.1").atomic_thread_fence
    function.argtypes = [ctypes.c_int]
    function.restype = None
    return functools.partial(function, SEQUENTIALLY_CONSISTENT)


def os_memory_barrier() -> Fence:
    """Return the fence of macOS. Raises AttributeError elsewhere."""
    function = ctypes.CDLL(None).OSMemoryBarrier
    function.restype = None
    return function


def membarrier() -> Fence:
    """Return the fence of Linux. Raises an error if the kernel does not have it."""
    number = MEMBARRIER_CALLS[platform.machine()]
    syscall = ctypes.CDLL(None).syscall
    syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_uint, ctypes.c_int]
    syscall.restype = ctypes.c_long
    supported = syscall(number, MEMBARRIER_QUERY, 0, 0)
    if supported < 0 or not supported & MEMBARRIER_GLOBAL_EXPEDITED:
        raise OSError("the kernel does not allow membarrier")
    return functools.partial(syscall, number, MEMBARRIER_GLOBAL_EXPEDITED, 0, 0)
