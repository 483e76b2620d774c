"""The tokenizer and the chat template of a model's folder: from messages to token ids, and back to text.

task ──► encode_prompt ──► chat template ──► ids        for the policy to read
a tool's result ──► encode_text ──► ids                 to append to what it has written
ids ──► decode_text ──► text                            to find calls and answers in
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from zorplex_rl.errors import ConfigError
from zorplex_rl.policy.model_folder import read_json
from zorplex_rl.task.episode import Task

# Jinja and transformers take a while to load: they are imported where they are used.
if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerBase

    Tokenizer: TypeAlias = "PreTrainedTokenizerBase | FastTokenizer"

TRIAL = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "What is 7?"}]
"""Messages that every chat template must accept."""
TODAY = datetime(2026, 1, 1)
"""The date that a template gets, so that a run has the same prompts every day."""
HIDING = "\ufdd0"
"""Not a character: put into a control token, it hides the token from template and tokenizer."""


class FastTokenizer:
    """The tokenizer of a folder's ``tokenizer.json``, with those methods of transformers that the package
    calls. Its chat template, also when saved, begins by setting ``template_arguments``."""

    def __init__(self, folder: Path, template_arguments: str = "") -> None:
        from tokenizers import Tokenizer

        self._folder = folder
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = Tokenizer.from_str(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        given = [f"{{% set {each} %}}" for each in template_arguments.split(",") if each]
        self._template = "".join(given) + _template_of(folder)
        added: dict[int, AddedToken] = self._tokenizer.get_added_tokens_decoder()
        self.added_tokens_decoder = added
        settings = read_json(folder / "tokenizer_config.json")
        self._names: dict[str, str] = {}
        """The special tokens by the names that a template uses."""
        ids: dict[str, int | None] = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            if token := settings.get(name):
                self._names[name] = token["content"] if isinstance(token, dict) else token
                ids[name] = self._tokenizer.token_to_id(self._names[name])
        self.eos_token_id = ids.get("eos_token")
        self.pad_token_id = ids.get("pad_token")

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def __call__(
        self,
        text: str,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
    ) -> dict[str, list[int]]:
        """Return the ids of ``text`` as ``input_ids``. Control tokens in it are recognised, or split like
        other text."""
        self._tokenizer.encode_special_tokens = split_special_tokens
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoding.ids}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ``ids``."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token."""
        return self._tokenizer.get_vocab()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        return_dict: bool = False,
    ) -> str | list[int]:
        """Return the prompt of ``messages`` or, with ``tokenize``, its ids. If the template refuses a
        system prompt, that stands at the beginning of the first question."""
        from jinja2 import TemplateError

        template = _compiled(self._template)
        settings = {
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **self._names,
        }
        try:
            text = template.render(messages=messages, **settings)
        except TemplateError:
            system, question, *others = messages
            content = f"{system['content']}\n\n{question['content']}"
            text = template.render(messages=[{**question, "content": content}, *others], **settings)
        return self(text, add_special_tokens=False)["input_ids"] if tokenize else text

    def save_pretrained(self, folder: Path) -> None:
        """Write the files of the tokenizer to ``folder``."""
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(self._folder / name, folder / name)
        (folder / "chat_template.jinja").write_text(self._template, encoding="utf-8")


def _template_of(folder: Path) -> str:
    """Return the chat template of ``folder``. Raises ValueError if it has none."""
    if (file := folder / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8")
    template = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        by_name = {each["name"]: each["template"] for each in template}
        template = by_name.get("default")
    if template is None:
        raise ValueError("it has no chat_template")
    return template


@cache
def _compiled(source: str) -> Template:
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag that marks what a model writes. In a prompt only its content counts."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, Generation],
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = TODAY.strftime
    return environment.from_string(source)


def end_of_turn(tokenizer: Tokenizer) -> int | None:
    """Return the control token that the chat template puts after an answer, or None."""
    answer = "It is 7."
    messages = [*TRIAL, {"role": "assistant", "content": answer}]
    text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    _, _, behind = text.rpartition(answer)
    ids = tokenizer(behind.lstrip(), add_special_tokens=False)["input_ids"]
    token = tokenizer.added_tokens_decoder.get(ids[0]) if ids else None
    return ids[0] if token and token.special else None


def encode_prompt(tokenizer: Tokenizer, task: Task) -> list[int]:
    """Return the ids of ``task``'s system prompt, examples and question in the chat template. What
    looks like a control token in the question is text."""
    added = tokenizer.added_tokens_decoder
    special = {token.content: i for i, token in added.items() if token.special}
    longest_first = sorted(special, key=len, reverse=True)
    control = "|".join(map(re.escape, longest_first)) or "(?!)"
    question = re.sub(f"(?={control})(.)", rf"\1{HIDING}", task.question, flags=re.DOTALL)
    messages = [{"role": "system", "content": task.system}]
    for asked, answer in task.examples:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": answer})
    messages.append({"role": "user", "content": question})
    prompt = str(
        tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    )
    if question == task.question:
        return tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids: list[int] = []
    for piece in re.split(f"({control})", prompt):
        if piece in special:
            ids.append(special[piece])
        else:
            ids += _encode(tokenizer, piece.replace(HIDING, ""))
    return ids


def shared_length(texts: Sequence[list[int]]) -> int:
    """Return the number of tokens with which all ``texts`` begin alike: as the first and the last of
    them in alphabetical order do."""
    length = 0
    for first, last in zip(min(texts), max(texts), strict=False):
        if first != last:
            break
        length += 1
    return length


def check_length(
    policy: str,
    most: int,
    prompt: int,
    max_tokens: int,
    shots: int,
) -> None:
    """Raise ConfigError if ``policy``, which reads at most ``most`` tokens (0: not known), cannot read a
    prompt of ``prompt`` tokens, with ``shots`` worked examples, and its answer."""
    if not most or prompt + max_tokens <= most:
        return
    settings = []
    if prompt < most:
        settings.append("--max-tokens")
    if shots:
        settings.append("--shots")
    advice = f"lower {' or '.join(settings)}" if settings else "shorten the questions"
    raise ConfigError(
        f"a prompt has {prompt} tokens and its answer may have {max_tokens}, but policy {policy!r} reads "
        f"at most {most} together; {advice}, or take another policy"
    )


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of ``text`` behind other text. What looks like a control token is text. Some
    tokenizers begin with a space: here it stands before a line break, which is left out."""
    start = _encode(tokenizer, "\n")
    ids = _encode(tokenizer, f"\n{text}")
    if ids[: len(start)] != start:
        # The line break has become one token with what follows.
        return _encode(tokenizer, text)
    return ids[len(start) :]


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def decode_text(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    eos_ids: Sequence[int],
) -> str:
    """Return the text of ``ids`` without ``eos_ids``, which end it. It stands behind other text here: at
    the very beginning a tokenizer may drop a space. Control tokens stay: an answer's tag may be one."""
    first = [*eos_ids[:1]]
    written = [i for i in ids if i not in eos_ids]
    return tokenizer.decode(first + written).removeprefix(tokenizer.decode(first))
