"""Check a model's chat template in a process of its own, before anything here runs it.

A chat template is a program. Its language reaches no file and no network, but it can compute
without end, and Python cannot interrupt one long multiplication. So the first prompt is made by a
child with a limit of processor time and of memory.

template, special tokens ──► child: compile, make a prompt ──► its length, or what it raised
"""

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from zorplex_rl.errors import PolicyError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_SECONDS = 10.0
"""Processor time that a chat template may take for one prompt."""
MOST_TEMPLATE_CHARACTERS = 100_000
"""How long the prompt may be that a chat template makes of two short messages."""
_MEMORY_BYTES = 2 << 30
_PROGRAM = """
import json, resource, sys, time
from transformers.utils.chat_template_utils import render_jinja_template
template, variables, messages, seconds, memory = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds + 1),) * 2)
try:
    (prompt,), _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **variables)
    print(json.dumps({"characters": len(prompt)}))
except BaseException as error:
    print(json.dumps({"error": (str(error).strip() or type(error).__name__).splitlines()[0][:200]}))
"""


def check_chat_template(name: str, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raise PolicyError if the policy's chat template makes no prompt within time and memory."""
    messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "1 + 1 = ?"}]
    try:
        template = tokenizer.get_chat_template()
    except Exception as error:
        raise PolicyError(f"policy {name!r} has no chat template that can be used: {error}") from error
    asked = json.dumps([template, tokenizer.special_tokens_map, messages, TEMPLATE_SECONDS, _MEMORY_BYTES])
    child = subprocess.run([sys.executable, "-c", _PROGRAM], input=asked, capture_output=True, text=True)
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise PolicyError(
            f"policy {name!r} has a chat template that makes no prompt within {TEMPLATE_SECONDS:g} s; "
            "download the model again"
        )
    found = _answer(child)
    if "error" in found:
        raise PolicyError(f"policy {name!r} has a chat template that fails: {found['error']}")
    if found["characters"] > MOST_TEMPLATE_CHARACTERS:
        raise PolicyError(
            f"policy {name!r} has a chat template that makes {found['characters']:,} characters of a question of nine; "
            f"expected at most {MOST_TEMPLATE_CHARACTERS:,}, so download the model again"
        )


def _answer(child: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """Return what the child has said, or how it ended."""
    if child.stdout.strip():
        return dict(json.loads(child.stdout))
    return {"error": (child.stderr.strip() or f"its process ended with {child.returncode}").splitlines()[-1][:200]}
