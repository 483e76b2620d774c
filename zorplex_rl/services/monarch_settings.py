"""Import Monarch with this package's settings. All files of this folder import Monarch from here.

Monarch reads these settings once, at its first import; started processes inherit them. Monarch asks
once a second whether a process is there. One that does not answer may only stand still, for as long
as its service allows. So Monarch's own limit is longer.
"""

import ctypes
import os
from pathlib import Path

from zorplex_rl.services.tls import TLS, use

os.environ.setdefault("HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY", "1s")
os.environ.setdefault("HYPERACTOR_MESH_GET_ACTOR_STATE_MAX_IDLE", "1h")
os.environ.setdefault("HYPERACTOR_MESH_GET_PROC_STATE_MAX_IDLE", "1h")
os.environ.setdefault("MONARCH_FILE_LOG", "error")
# Written later, by processes in which Monarch's threads read the environment. A name that is there
# already is replaced in place. A new one may move the whole environment away under a reader, and
# the process dies of a segmentation fault. All readers take an empty value for none.
os.environ.setdefault("GLOO_SOCKET_IFNAME", "")
os.environ.setdefault("NCCL_SOCKET_IFNAME", "")
os.environ.setdefault("ZORPLEX_SECRET", "")
# Read only once, too.
if TLS in os.environ:
    use(Path(os.environ[TLS]))

import monarch
import monarch.actor
import monarch.config
from monarch._rust_bindings.monarch_hyperactor.actor import MethodSpecifier
from monarch._rust_bindings.monarch_hyperactor.channel import BindSpec, ChannelTransport
from monarch._rust_bindings.monarch_hyperactor.proc import ProcId, Uid
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import Actor, ActorError

__all__ = [
    "Actor", "ActorError", "BindSpec", "ChannelTransport", "MethodSpecifier", "ProcId", "ReplicaDied", "Uid", "configure", "monarch",
]  # fmt: skip

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
# The C library gives a freed block of some MB back, and the next message of that size pays for
# every page anew. Kept, a message of 4 MB arrives 1.2 to 1.6 times as often (benchmarks/against.py,
# pulls). Each arena keeps at most 64 MB. Other C libraries have no such setting.
if (_mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
    _mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    _mallopt(_M_TRIM_THRESHOLD, 64 << 20)

ReplicaDied = SupervisionError
"""A call raises this if its process is gone. What an endpoint raises is an ActorError instead."""


def configure(streams: int) -> None:
    """Set how Monarch moves bulk data, with so many ``streams``."""
    # Small chunks, two streams and one acknowledgement per message give two to four times the
    # default bandwidth of the TCP fallback. With a fixed address, as hosts have, a second stream
    # hangs.
    monarch.configure(rdma_max_chunk_size_mb=4, rdma_tcp_fallback_parallelism=streams, message_ack_every_n_messages=1)
