"""Name what may become of a request that gets no answer. Each error says what has happened."""

from dataclasses import dataclass


class ServiceError(RuntimeError):
    """Report that a request got no answer; the message says why."""


class Overloaded(ServiceError):
    """Report that no replica had a free slot in time. The request was not sent."""


class GivenUp(ServiceError):
    """Report that a service was given up: its name, the last failure's cause, and what to do."""


class ReplicaFailed(ServiceError):
    """Report that the request's replica failed. The message says whether it may have been done."""

    def __init__(self, replica: str, message: str) -> None:
        # Both go to the base class, which pickles them: an endpoint may raise this to its caller.
        super().__init__(replica, message)
        self.replica, self.message = replica, message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Failure:
    """Stand for the result of a replica that gave none, in the list that ``fanout`` returns."""

    replica: str
    error: Exception
