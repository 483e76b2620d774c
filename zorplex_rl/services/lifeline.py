"""Notice within 5 seconds that a host is lost: killed, or cut off so that nothing answers.

    controller   hold(lifeline)  ── secret │ one byte, four times a second ──►  serve(host)   keeper

The two ends need not do anything in time: the *kernels* acknowledge each byte, also for a process
that is stopped or has no processor. So what ends the connection is that the keeper's process has
died (its kernel says so at once), or that the network carries nothing (nothing is acknowledged for
``SILENCE_SECONDS``). Packets that are lost or late are sent again. As the last proof a new
connection is tried, which takes a host that can be reached a few milliseconds.

Nobody is lost for standing still; that is for the lease (``host.py``) to judge.
"""

import asyncio
import contextlib
import hmac
import secrets
import socket
import ssl
from dataclasses import dataclass

SECRET_BYTES = 32
BYTE_SECONDS = 0.25
SILENCE_SECONDS = 1.8
"""A lost packet is sent again after 0.2, 0.6 and 1.4 s, each acknowledging all; next at 3.0."""
AGAIN_SECONDS = 1.3
"""For a new connection. Its first packet is sent again after 1 second."""
OPEN_SECONDS = 5.0
MOST_STRANGERS = 64


@dataclass(frozen=True, slots=True)
class Lifeline:
    """Say where a keeper listens, and the secret that opens a connection; it comes by message."""

    host: str
    port: int
    secret: bytes


async def serve(host: str, tls: ssl.SSLContext | None = None) -> Lifeline:
    """Listen at ``host``, an address of this machine, until this process ends. Raises OSError."""
    secret, strangers = secrets.token_bytes(SECRET_BYTES), dict[asyncio.StreamWriter, asyncio.Timeout]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, EOFError):
            try:
                async with asyncio.timeout(OPEN_SECONDS) as time_left:
                    strangers[writer] = time_left
                    if len(strangers) > MOST_STRANGERS:
                        # The controller may be among the last to come.
                        strangers.pop(next(iter(strangers))).reschedule(0)
                    if tls:
                        # Here, so that who does not go on with it is a stranger like any other.
                        await writer.start_tls(tls)
                    known = hmac.compare_digest(await reader.readexactly(SECRET_BYTES), secret)
            finally:
                strangers.pop(writer, None)
            while known and await reader.read(1 << 12):
                pass

    server = await asyncio.start_server(answer, host, 0)
    return Lifeline(host, server.sockets[0].getsockname()[1], secret)


async def hold(lifeline: Lifeline, tls: ssl.SSLContext | None = None) -> None:
    """Return when the host is lost. Raises OSError or TimeoutError without a connection."""
    async with asyncio.timeout(OPEN_SECONDS):
        connection = await _connect(lifeline, tls)
    while True:
        await _until_it_ends(*connection)
        # Not again and again without a pause where somebody hangs up at once.
        await asyncio.sleep(BYTE_SECONDS)
        try:
            async with asyncio.timeout(AGAIN_SECONDS):
                connection = await _connect(lifeline, tls)
        except OSError:
            return


async def _connect(lifeline: Lifeline, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(lifeline.host, lifeline.port, ssl=tls)
    connection: socket.socket = writer.get_extra_info("socket")
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_SECONDS * 1000))
    writer.write(lifeline.secret)
    return reader, writer


async def _until_it_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write a byte again and again. Returns when the system says that nobody gets them."""
    ended = asyncio.ensure_future(reader.read(1))
    try:
        while not ended.done():
            writer.write(b".")
            await asyncio.wait({ended}, timeout=BYTE_SECONDS)
    finally:
        ended.cancel()
        # Its exception, if it has one, has been seen: the connection has ended.
        await asyncio.gather(ended, return_exceptions=True)
        writer.close()
