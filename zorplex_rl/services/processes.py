"""Processes of this machine: their end, their processor time, and how to kill them.

    pid ──► pidfd, a file that stands for this process ──► readable: it has ended

That a process is gone is evidence, and is known at once. That one answers nothing is not: it may be
stopped, swapped out or short of a processor and go on later. Only a time limit can judge that, and
it is set by whoever waits (``ServiceOptions.probe_timeout``).
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
from collections.abc import Collection

import psutil

_GET_INFO, _INFO_EXIT = 0xC040FF0B, 1 << 3
"""PIDFD_GET_INFO for a pidfd_info of 64 bytes; its mask's bit for the status (linux/pidfd.h)."""
GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


async def until_one_ends(pids: Collection[int]) -> str:
    """Wait until one of ``pids`` has ended. Returns how, in words. Never returns without pidfds."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    files: list[int] = []
    try:
        for pid in pids:
            try:
                files.append(os.pidfd_open(pid))
            except ProcessLookupError:
                return "its process has ended"
            except (AttributeError, OSError):
                # Then Monarch has to notice it.
                continue
            loop.add_reader(files[-1], ended.set)
        await ended.wait()
        return next(filter(None, map(_how_it_ended, files)), "its process has ended")
    finally:
        for file in files:
            loop.remove_reader(file)
            os.close(file)


def _how_it_ended(file: int) -> str:
    """Return how the process of a pidfd has ended, or nothing if that is not known."""
    with contextlib.suppress(OSError):
        return _in_words(_status(file))
    return ""


def _status(file: int) -> int:
    """Return the status of a pidfd's ended process, as ``os.wait`` does. Raises OSError if unknown.
    Its parent may have waited for it. Linux keeps the status since 6.15 (``PIDFD_INFO_EXIT``)."""
    with contextlib.suppress(ChildProcessError):
        if found := os.waitid(os.P_PIDFD, file, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status
    info = struct.pack("Q56x", _INFO_EXIT)
    mask, status = struct.unpack("Q52xi", fcntl.ioctl(file, _GET_INFO, info))
    if not mask & _INFO_EXIT:
        raise OSError("the system does not keep the status of a process that has been waited for")
    return status


def _in_words(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"its process was killed (signal {os.WTERMSIG(status)})"
    return f"its process ended itself with exit code {os.waitstatus_to_exitcode(status)}"


def kill(pids: Collection[int]) -> None:
    """Kill processes of this machine, those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill this user's other processes whose environment has ``mark``, NAME=VALUE, and copies. So a
    program ends what a task's code has left behind, which may have forked or started programs."""
    name, _, value = mark.partition("=")
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                process.kill()


def kill_session(leader: int) -> None:
    """Kill the session of process ``leader`` and all that it has started, but not this process."""
    while pids := _processes_of(leader) - {os.getpid(), 1}:
        kill(pids)


def _processes_of(leader: int) -> set[int]:
    """Return a session's living processes, orphans included, and what they have started."""
    children: dict[int, list[psutil.Process]] = {}
    found = []
    for process in psutil.process_iter(["ppid", "status"]):
        children.setdefault(process.info["ppid"], []).append(process)
        with contextlib.suppress(OSError):
            if os.getsid(process.pid) == leader:
                found.append(process)
    for process in found:
        found += [child for child in children.get(process.pid, []) if child not in found]
    return {process.pid for process in found if process.info["status"] not in GONE}


def processor_seconds(pids: Collection[int]) -> float:
    """Return the processor seconds that ``pids`` have used; 0.0 if the system does not say."""
    seconds = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            seconds += times.user + times.system
    return seconds
