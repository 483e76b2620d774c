"""Serve a weight ring from a TCP socket, for readers on other machines.

    publisher   serve(ring, host)   ──► an address and a secret        one thread, which serves whoever is ready
    reader      SocketRing(handle)  ──  secret │ slot, bytes ──►       ◄── the first bytes of that slot, or of the headers

It exists because one read through Monarch goes through four processes: from the trainer's to the
worker of its host, to that of the reader's host, to the reader, with a copy into messages and out
of them at each. ``benchmarks/hosts.py`` measures both.

The socket listens at the one address that it is given. Who does not begin with the secret, 32
random bytes which travel with the handle in an actor's message, is hung up on. Until it has said
the secret, a connection is a stranger: it has a few seconds, and of too many strangers the oldest
is hung up on. So strangers cost a bounded number of descriptors, and no thread.

With TLS (an ``ssl.SSLContext`` on each side) both ends are verified first, and all of this is
encrypted. Without it, whoever can listen on the network can read weights and secret.
"""

import hmac
import logging
import math
import secrets
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from zorplex_rl.weights.ring import WeightRing

log = logging.getLogger(__name__)
Result = TypeVar("Result")
SECRET_BYTES = 32
HEADERS = -1
"""Asked for in the place of a slot's number."""
STALL_SECONDS = 5.0
"""A connection on which nothing moves for this long is given up, and so is one that has not said
the secret by then."""
MOST_STRANGERS = 64
LOOK_SECONDS = 0.25
"""How often the publisher looks for connections whose time is over."""
TURN_BYTES = 16 << 20
"""At most so much goes to one reader before the next one has its turn."""
REQUEST = struct.Struct("!qq")
"""The slot, and how many of its bytes."""
Steps = Generator[int, None, Any]
"""What is done for one connection. Yields what its socket has to be ready for before the next step:
to be read, or written."""


@dataclass(frozen=True, slots=True)
class SocketHandle:
    """Where a ring is served, and the secret that opens it."""

    host: str
    port: int
    secret: bytes


def serve(ring: WeightRing, host: str, tls: ssl.SSLContext | None = None) -> SocketHandle:
    """Serve ``ring`` at ``host``, an address of this machine, as long as this process lives.
    Returns where. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    handle = SocketHandle(host, listener.getsockname()[1], secrets.token_bytes(SECRET_BYTES))
    threading.Thread(target=_Readers(listener, ring, handle.secret, tls).serve, daemon=True, name="weights").start()
    return handle


class _Connection:
    """One reader, or a stranger until it ``is_known``. Its time is over at ``until``."""

    def __init__(self, accepted: socket.socket, ring: WeightRing, secret: bytes) -> None:
        self.socket, self.is_known = accepted, False
        self.until = time.monotonic() + STALL_SECONDS
        self.steps = self._answer(ring, secret)

    def _answer(self, ring: WeightRing, secret: bytes) -> Steps:
        """Answer it until it hangs up, or asks for what there is not."""
        if isinstance(self.socket, ssl.SSLSocket):
            yield from _when_ready(self.socket.do_handshake, selectors.EVENT_READ)
        said, request = bytearray(SECRET_BYTES), bytearray(REQUEST.size)
        yield from self._receive(said)
        if not hmac.compare_digest(said, secret):
            return
        self.is_known = True
        while True:
            # A reader may be silent for as long as it samples.
            self.until = math.inf
            yield from self._receive(request)
            asked, size = REQUEST.unpack(request)
            if not HEADERS <= asked < len(ring.slots):
                return
            content = _bytes_of(ring.headers if asked == HEADERS else ring.slots[asked])
            if not 0 < size <= len(content):
                return
            yield from self._send(content[:size])

    def _receive(self, target: bytearray) -> Steps:
        view = memoryview(target)
        while view:
            size = yield from _when_ready(lambda: self.socket.recv_into(view), selectors.EVENT_READ)  # noqa: B023, called at once
            if not size:
                raise ConnectionError("the reader has hung up")
            view = view[size:]

    def _send(self, content: memoryview) -> Steps:
        while content:
            piece = content[:TURN_BYTES]
            self.until = time.monotonic() + STALL_SECONDS
            size = yield from _when_ready(lambda: self.socket.send(piece), selectors.EVENT_WRITE)  # noqa: B023
            content = content[size:]
            # The others' turn.
            yield selectors.EVENT_WRITE


def _when_ready(call: Callable[[], Result], event: int) -> Generator[int, None, Result]:
    """Return what ``call`` returns, once its socket is ready for it. TLS may have to read before it
    can write, and the other way."""
    while True:
        try:
            return call()
        except BlockingIOError:
            yield event
        except ssl.SSLWantReadError:
            yield selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            yield selectors.EVENT_WRITE


class _Readers:
    """All connections to one ring, served by one thread."""

    def __init__(self, listener: socket.socket, ring: WeightRing, secret: bytes, tls: ssl.SSLContext | None) -> None:
        listener.setblocking(False)
        self._listener, self._ring, self._secret, self._tls = listener, ring, secret, tls
        self._ready = selectors.DefaultSelector()
        self._connections: list[_Connection] = []

    def serve(self) -> None:
        self._listen(True)
        look = time.monotonic() + LOOK_SECONDS
        while True:
            for key, _ in self._ready.select(LOOK_SECONDS):
                if key.data is None:
                    self._accept()
                elif key.data.socket.fileno() >= 0:
                    self._go_on(key.data)
            if (now := time.monotonic()) > look:
                look = now + LOOK_SECONDS
                for late in [connection for connection in self._connections if connection.until < now]:
                    self._hang_up(late)
                self._listen(True)

    def _listen(self, wanted: bool) -> None:
        if wanted and self._listener not in self._ready.get_map():
            self._ready.register(self._listener, selectors.EVENT_READ)
        elif not wanted:
            self._ready.unregister(self._listener)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            # Without a descriptor for it, the connection waits, and would wake this thread again at
            # once: so look away for a moment.
            log.debug("no reader was accepted: %s", error)
            self._listen(False)
            return
        strangers = [connection for connection in self._connections if not connection.is_known]
        if len(strangers) >= MOST_STRANGERS:
            self._hang_up(strangers[0])
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                accepted = self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
            connection = _Connection(accepted, self._ring, self._secret)
            self._ready.register(accepted, selectors.EVENT_READ, connection)
        except OSError:
            # It has hung up already. The next one that waits has its turn at once.
            accepted.close()
            return
        self._connections.append(connection)

    def _go_on(self, connection: _Connection) -> None:
        """Do the next step of ``connection``."""
        if connection.is_known and connection.until < math.inf:
            # Something has moved, if only within a piece.
            connection.until = time.monotonic() + STALL_SECONDS
        try:
            event = next(connection.steps)
            if event != self._ready.get_key(connection.socket).events:
                self._ready.modify(connection.socket, event, connection)
        except (StopIteration, OSError):
            self._hang_up(connection)

    def _hang_up(self, connection: _Connection) -> None:
        if connection.socket in self._ready.get_map():
            self._ready.unregister(connection.socket)
        connection.socket.close()
        self._connections.remove(connection)


class SocketRing:
    """The reader's end of one connection. Raises OSError wherever the publisher does not answer;
    then it is of no more use."""

    def __init__(self, handle: SocketHandle, tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection((handle.host, handle.port), timeout=STALL_SECONDS)
        if tls:
            self._socket = tls.wrap_socket(self._socket, server_hostname=handle.host)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(handle.secret)

    def read_headers(self, slots: int) -> Tensor:
        """Return the headers of all ``slots``, int64 [slots, 2]."""
        headers = torch.zeros(slots, 2, dtype=torch.int64)
        self._read(HEADERS, headers)
        return headers

    def read_slot(self, slot: int, staging: Tensor) -> None:
        """Fill ``staging``, uint8, with the first bytes of ``slot``."""
        self._read(slot, staging)

    def close(self) -> None:
        self._socket.close()

    def _read(self, asked: int, target: Tensor) -> None:
        view = _bytes_of(target)
        self._socket.sendall(REQUEST.pack(asked, len(view)))
        while view:
            if not (size := self._socket.recv_into(view)):
                raise ConnectionError("the publisher has hung up")
            view = view[size:]


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
