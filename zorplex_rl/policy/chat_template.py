"""Run a model's own chat template in a process of its own, within limits.

A chat template is a program. Its language reaches no file and no network, but it can compute
without end, also for some questions only, and Python cannot interrupt one long multiplication. So a
child makes all prompts of a policy from elsewhere, with limits of processor time and of memory.

question ──► encode_prompt ──► pipe ──► child: the template, compiled once ──► its prompt, or what it raised
                   └── the embedded policy's template, which is ours: made there
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zorplex_rl.errors import PolicyError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_SECONDS = 10.0
"""Processor time that a chat template may take for one prompt."""
MOST_TEMPLATE_CHARACTERS = 100_000
"""How many characters the prompt may have beyond those of its messages."""
_MEMORY_BYTES = 2 << 30
APART = "_zorplex_template"
"""A tokenizer's attribute: makes a prompt of messages in the child that runs its template."""
_PROGRAM = """
import json, math, resource, sys, time
from transformers.utils.chat_template_utils import render_jinja_template
template, variables, seconds, memory = json.loads(sys.stdin.readline())
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
_, most = resource.getrlimit(resource.RLIMIT_CPU)
for line in sys.stdin:
    # A limit of the process: so far, and for this prompt.
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + seconds), most))
    messages, characters = json.loads(line)
    try:
        (prompt,), _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **variables)
        found = {"characters": len(prompt), "prompt": prompt[:characters]}
    except BaseException as error:
        found = {"error": (str(error).strip() or type(error).__name__).splitlines()[0][:200]}
    print(json.dumps(found), flush=True)
"""

Messages = Sequence[dict[str, str]]


def run_template_apart(name: str, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Have ``encode_prompt`` run the template of ``tokenizer``, policy ``name``'s, in a child.
    Raises PolicyError if it makes no prompt of a short question."""
    try:
        template = tokenizer.get_chat_template()
    except Exception as error:
        raise PolicyError(f"policy {name!r} has no chat template that can be used: {error}") from error
    apart = _TemplateApart(name, template, tokenizer.special_tokens_map)
    apart([{"role": "system", "content": "Answer."}, {"role": "user", "content": "1 + 1 = ?"}])
    setattr(tokenizer, APART, apart)


class _TemplateApart:
    """Hold the child, which ends with this process, or with its tokenizer."""

    def __init__(self, name: str, template: str, variables: dict[str, Any]) -> None:
        self._name, self._template, self._variables = name, template, variables
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._name, self._template, self._variables)

    def __del__(self) -> None:
        if self._child:
            self._child.kill()
            self._child.communicate()

    def __call__(self, messages: Messages) -> str:
        """Return the template's prompt. Raises PolicyError."""
        most = MOST_TEMPLATE_CHARACTERS + sum(len(message["content"]) for message in messages)
        with self._lock:
            found = self._ask(json.dumps([messages, most]))
        if "error" in found:
            raise PolicyError(f"policy {self._name!r} has a chat template that fails: {found['error']}")
        if found["characters"] > most:
            raise PolicyError(
                f"policy {self._name!r} has a chat template that makes {found['characters']:,} characters of a question of "
                f"{len(messages[-1]['content'])}; expected at most {most:,}, so download the model again"
            )
        return str(found["prompt"])

    def _ask(self, question: str) -> dict[str, Any]:
        """Return what the child says, or how it ended. Another one answers the next question."""
        child = self._child = self._child or self._start()
        answer, said = "", ""
        try:
            _write(child, question)
            answer = child.stdout.readline() if child.stdout else ""
        finally:
            if not answer:
                # Also if this was interrupted: what the child says now is no answer to the next.
                self._child, said = None, _end(child)
        if answer:
            return dict(json.loads(answer))
        if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            raise PolicyError(
                f"policy {self._name!r} has a chat template that makes no prompt within {TEMPLATE_SECONDS:g} s; "
                "download the model again"
            )
        return {"error": (said or f"its process ended with {child.returncode}").splitlines()[-1][:200]}

    def _start(self) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C is for this process alone.
            start_new_session=True,
        )
        _write(child, json.dumps([self._template, self._variables, TEMPLATE_SECONDS, _MEMORY_BYTES]))
        return child


def _write(child: "subprocess.Popen[str]", line: str) -> None:
    # One that has ended says why when it is read.
    with contextlib.suppress(OSError):
        if child.stdin:
            child.stdin.write(line + "\n")
            child.stdin.flush()


def _end(child: "subprocess.Popen[str]") -> str:
    """End ``child``, which may be about to end by itself. Returns what it has said of that."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
    child.kill()
    with contextlib.suppress(OSError):
        return child.communicate()[1].strip()
    return ""
