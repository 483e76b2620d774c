"""Serve a weight ring from a plain TCP socket, for readers on other machines.

    publisher   serve(ring, host)   ──► an address and a secret        one thread for each reader
    reader      SocketRing(handle)  ──  secret │ slot number ──►       ◄── the bytes of that slot, or of all headers

It exists because one read through Monarch goes through four processes: from the trainer's to the worker of its host, to that of the reader's
host, to the reader, with a copy into messages and out of them at each. ``benchmarks/hosts.py`` measures both.

The socket listens at the one address that it is given. Who does not begin with the secret, 32 random bytes which travel with the handle in an
actor's message, is hung up on. Nothing is encrypted, so whoever can listen on the network can read weights and secret.
"""

import hmac
import secrets
import socket
import struct
import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from zorplex_rl.weights.ring import WeightRing

SECRET_BYTES = 32
HEADERS = -1
"""Asked for in the place of a slot's number."""
STALL_SECONDS = 5.0
"""A connection on which nothing moves for this long is given up."""
REQUEST = struct.Struct("!q")


@dataclass(frozen=True, slots=True)
class SocketHandle:
    """Where a ring is served, and the secret that opens it."""

    host: str
    port: int
    secret: bytes


def serve(ring: WeightRing, host: str) -> SocketHandle:
    """Serve ``ring`` at ``host``, an address of this machine, as long as this process lives. Returns where. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.create_server((host, 0), family=family)
    handle = SocketHandle(host, server.getsockname()[1], secrets.token_bytes(SECRET_BYTES))

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_answer, args=(connection, ring, handle.secret), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return handle


def _answer(connection: socket.socket, ring: WeightRing, secret: bytes) -> None:
    """Answer one reader until it hangs up."""
    with connection:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(STALL_SECONDS)
            if not hmac.compare_digest(_receive(connection, SECRET_BYTES), secret):
                return
            while True:
                # A reader may be silent for as long as it samples.
                connection.settimeout(None)
                (asked,) = REQUEST.unpack(_receive(connection, REQUEST.size))
                connection.settimeout(STALL_SECONDS)
                if not HEADERS <= asked < len(ring.slots):
                    return
                connection.sendall(_bytes_of(ring.headers if asked == HEADERS else ring.slots[asked]))
        except OSError:
            return


class SocketRing:
    """The reader's end of one connection. Raises OSError wherever the publisher does not answer; then it is of no more use."""

    def __init__(self, handle: SocketHandle) -> None:
        self._socket = socket.create_connection((handle.host, handle.port), timeout=STALL_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(handle.secret)

    def read_headers(self, slots: int) -> Tensor:
        """Return the headers of all ``slots``, int64 [slots, 2]."""
        headers = torch.zeros(slots, 2, dtype=torch.int64)
        self._read(HEADERS, headers)
        return headers

    def read_slot(self, slot: int, staging: Tensor) -> None:
        """Copy ``slot`` into ``staging``, uint8 [layout.size]."""
        self._read(slot, staging)

    def close(self) -> None:
        self._socket.close()

    def _read(self, asked: int, target: Tensor) -> None:
        self._socket.sendall(REQUEST.pack(asked))
        _receive_into(self._socket, _bytes_of(target))


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray(size)
    _receive_into(connection, memoryview(received))
    return bytes(received)


def _receive_into(connection: socket.socket, target: memoryview) -> None:
    while target:
        if not (size := connection.recv_into(target)):
            raise ConnectionError("the publisher has hung up")
        target = target[size:]
