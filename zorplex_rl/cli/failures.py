"""Say what has gone wrong in a sentence: role, cause, what to lower. ``--debug`` shows tracebacks.

OSError 12, MemoryError, torch's own, from an actor     the generator ran out of memory (…); lower --slots (now 64) or …
a process that is gone                                  the dataset was killed (signal 9, which the system sends when memory runs out)
another exception of an actor, or of the controller     …; this is a defect in zorplex-rl, please report it
"""

import errno
import re
from collections.abc import Sequence

from zorplex_rl.config import Config
from zorplex_rl.services.service_errors import ServiceError

DONE, FAILED, INTERRUPTED = 0, 1, 130
"""Exit codes. Bad input has another one, 2: nothing was started."""

LOWER = {
    "generator": ("slots", "max_tokens", "eval_tasks"),
    "trainer": ("token_budget", "max_tokens"),
    "reference": ("prompts_per_step", "group_size", "max_tokens"),
}
"""What the memory of a role depends on. That of the others depends on the size of a batch."""
_MEMORY = re.compile(
    r"MemoryError|OutOfMemory|out of memory|can't allocate|cannot allocate memory|unable to allocate|bad_alloc",
    re.IGNORECASE,
)
# "Actor call TrainerRankActor.step failed", "… The actor <root>.<….actors.DatasetActor dataset{…}>
# and all its descendants have failed", "error creating proc … {"id":"generator_0-0<z4azc>" …".
# Monarch has processes and actors of its own, such as "setup".
_ROLES = "dataset|generator|tools|reward|reference|replay|advantage|trainer"
_ROLE = re.compile(rf"\b(\w+?)(?:Rank)?Actor(?:\.\w+ failed| \w+\{{)|\"id\":\"({_ROLES})[_\d]*-\d+<")
_DEATH = re.compile(
    r"(?:(?:the process this actor was running on failed: )?Killed(?:\(sig=| \{ signal: )|its process was killed \(signal )(\d+)[^)}]*[)}]"
)
# Where a process did not come up, Monarch gives JSON, in which a death is named somewhere.
_NOT_CREATED = re.compile(r"error creating proc \(.*", re.DOTALL)


MOST_CHARACTERS = 100_000
"""Of what an exception says. Monarch's longest reports are shorter."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` says that there is no memory left, on a CPU or a GPU."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return not isinstance(error, OSError) and bool(_MEMORY.search(f"{type(error).__name__}: {text_of(error)}"))


def role_of(error: BaseException) -> str | None:
    """Return the role in whose process ``error`` happened, as people call it; None if it was here.

    >>> role_of(RuntimeError("Actor call ReplayBufferActor.add failed.")), role_of(RuntimeError("no such thing"))
    ('replay buffer', None)
    """
    if not (found := _ROLE.search(text_of(error))):
        return None
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", found[1] or found[2]).lower()


def in_plain_words(text: str) -> str:
    """Return ``text`` with what Monarch writes about the death of a process in other words.

    >>> in_plain_words("tools_0 failed: the process this actor was running on failed: Killed(sig=15)")
    'tools_0 failed: its process was killed (signal 15)'
    >>> in_plain_words('tools_0: error creating proc (host rank 0), state: {"status":{"Failed":"… Killed(sig=15)"}}')
    'tools_0: its process was killed (signal 15)'
    >>> in_plain_words("tools_0: error creating proc (host rank 0), state: {}")
    'tools_0: Monarch could not start its process'
    """

    def words(found: re.Match[str]) -> str:
        why = ", which the system sends when memory runs out" if found[1] == "9" else ""
        return f"its process was killed (signal {found[1]}{why})"

    def of_a_start(found: re.Match[str]) -> str:
        death = _DEATH.search(found[0])
        return words(death) if death else "Monarch could not start its process"

    return _DEATH.sub(words, _NOT_CREATED.sub(of_a_start, text))


def settings_to_lower(config: Config, names: Sequence[str]) -> str:
    """Return the flags of settings ``names`` of which less may help, with present values.

    >>> settings_to_lower(Config(), ["slots", "max_tokens"])
    '--slots (now 64) or --max-tokens (now 96)'
    """
    values = config.settings()
    return " or ".join(f"--{name.replace('_', '-')} (now {values[name]:g})" for name in names)


def cause_of(error: BaseException) -> BaseException:
    """Return what is behind ``error``: the first of a group, the endpoint's exception."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    cause = getattr(error, "exception", None)
    return cause if isinstance(cause, BaseException) else error


def sentence_of(error: BaseException, config: Config | None = None) -> str:
    """Return what ``error`` means and what can be done, in a run of ``config`` if it was one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    role, cause, report = role_of(error), cause_of(error), text_of(error)
    who, said = f"the {role}" if role else "the program", _first_line(cause)
    if is_out_of_memory(cause):
        return f"{who} ran out of memory ({said}); {_what_to_lower(config, role)}"
    death = _DEATH.search(report)
    if isinstance(cause, ServiceError):
        lower = f"; {_what_to_lower(config, role)}" if death and death[1] == "9" else ""
        return f"{in_plain_words(report)}{lower}"
    if death:
        lower = f"; if it was that, {_what_to_lower(config, role)}" if death[1] == "9" else ""
        return f"{who} is gone: {in_plain_words(death[0])}{lower}"
    if role and cause is error:
        # Monarch's report of a loss names the cause last.
        return f"{who} is gone: {in_plain_words(report.strip().splitlines()[-1].strip())}"
    return f"{f'{who} failed: ' if role else ''}{said}; this is a defect in zorplex-rl, please report it"


def _what_to_lower(config: Config | None, role: str | None) -> str:
    if config is None:
        return "close other programs, or use a smaller policy"
    names = LOWER.get(role or "", ("prompts_per_step", "group_size"))
    return f"lower {settings_to_lower(config, names)}; zorplex-rl size says what a run takes"


def text_of(error: BaseException) -> str:
    """Return what ``error`` says, at most ``MOST_CHARACTERS``; nothing if its class fails at that."""
    try:
        return str.__getitem__(str(error), slice(MOST_CHARACTERS))
    except BaseException:  # Whatever a class of its own raises.
        return ""


def _first_line(error: BaseException) -> str:
    """Return type and message of ``error``, at most 300 characters."""
    said = next(iter(text_of(error).strip().splitlines()), "")
    # The stand-in for an exception that could not be sent names the original's type itself.
    name = "" if type(error).__name__ == "RemoteException" else type(error).__name__
    return ": ".join(filter(None, (name, said)))[:300]
