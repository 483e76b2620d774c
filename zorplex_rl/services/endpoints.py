"""Mark methods of actors as endpoints that count what their process serves, and always answer.

request ──► endpoint ──► draining? ── yes ──► Refused: not begun, so it may go elsewhere
                            │ no
                            └──► serving + 1 ──► the method ──► answer ──► serving − 1
"""

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from zorplex_rl.services.endpoint_error import EndpointError
from zorplex_rl.services.load import Load, load_of_nobody, load_of_this_process
from zorplex_rl.services.monarch_settings import MethodSpecifier, ReplicaDied, monarch
from zorplex_rl.services.tasks import is_being_cancelled


class Refused(Exception):
    """Report that the process is draining. The endpoint did not run."""


def concurrent_endpoint(method: Callable[..., Any]) -> Any:
    """Mark an async method as an endpoint whose calls run side by side."""
    return monarch.actor.concurrent_endpoint(explicit_response_port=True)(_answering(method, load_of_this_process))


def endpoint(method: Callable[..., Any]) -> Any:
    """Mark a method as an endpoint whose calls run one after the other."""
    return monarch.actor.endpoint(explicit_response_port=True)(_answering(method, load_of_this_process))


def uncounted_endpoint(method: Callable[..., Any]) -> Any:
    """Mark an async method as a concurrent endpoint that is no load, and answers while draining."""
    return monarch.actor.concurrent_endpoint(explicit_response_port=True)(_answering(method, load_of_nobody))


def is_made(mesh: Any) -> Any:
    """Return an endpoint of the actors ``mesh``, which answers once ``__init__`` has returned. Every
    class has this method; what its own ``__init__`` does, Monarch reports to nobody."""
    return mesh._endpoint(MethodSpecifier.ReturnsResponse("__sizeof__"), lambda actor: None, None)


def _answering(method: Callable[..., Any], load_of: Callable[[], Load]) -> Any:
    """Return ``method`` as Monarch calls it: with the port that always gets an answer."""
    answering: Any
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def answering(actor: Any, reply: Any, *args: Any, **kwargs: Any) -> None:
            if not _begins(reply, load := load_of()):
                return
            try:
                reply.send(await method(actor, *args, **kwargs))
            except BaseException as error:
                _answer_with(error, reply, method)
            finally:
                load.end(method.__name__)

    else:

        @functools.wraps(method)
        def answering(actor: Any, reply: Any, *args: Any, **kwargs: Any) -> None:
            if not _begins(reply, load := load_of()):
                return
            try:
                reply.send(method(actor, *args, **kwargs))
            except BaseException as error:
                reply.exception(EndpointError.of(error, f"Actor call {method.__qualname__} failed."))
            finally:
                load.end(method.__name__)

    # Monarch checks the arguments of a call against the signature.
    own = inspect.signature(method)
    actor, *rest = own.parameters.values()
    answering.__signature__ = own.replace(parameters=[actor, _REPLY, *rest])
    return answering


_REPLY = inspect.Parameter("reply", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _begins(reply: Any, load: Load) -> bool:
    # A caller may have stopped: Monarch would end this actor for an answer that is lost.
    reply.return_undeliverable = False
    if begins := load.begin():
        return begins
    reply.exception(Refused("this replica is about to stop and takes no more requests"))
    return False


def _answer_with(error: BaseException, reply: Any, method: Callable[..., Any]) -> None:
    """Tell the caller of ``error``, which ``method`` has raised. A cancellation from outside means
    that the actor is being stopped and answers nothing more. To the caller that is the death of its
    process. Any other CancelledError is an error like another."""
    if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
        reply.exception(ReplicaDied(f"its actor was stopped during {method.__qualname__}"))
        raise error
    reply.exception(EndpointError.of(error, f"Actor call {method.__qualname__} failed."))
