"""Build the reference page of stacks: a table to sort, what each stack does with its sources, and
one job told to five of them.

    stacks.toml, stack_commands.toml ──► content() ──► stacks.html

It is plain HTML. ``sorting.js`` makes the table's headings buttons; without scripts the table stays
in the order of the alphabet, ours first.
"""

import html
import re
from collections.abc import Iterable, Sequence

from zorplex_rl.course.lesson.markup import block, fence, inline
from zorplex_rl.course.stacks import (
    AXES,
    KINDS,
    KNOBS,
    LAUNCHES,
    READ_ON,
    STACKS,
    Cell,
    Source,
    Stack,
)

PAGE = "stacks.html"
TITLE = "Sixteen stacks for RL on language models"


def content() -> str:
    """Return what stands in the page's ``main`` element."""
    kinds = "; ".join(
        f"<b>{html.escape(kind)}</b>: {inline(meaning)}" for kind, meaning in KINDS.items()
    )
    return f"""<h1>{TITLE}</h1>
<p class="lead">The same eight questions to each stack. Press a heading to sort by its column; a stack's name leads to its details and sources.</p>
<p>All of it was read, in the sources that are named, on {READ_ON}, or on the later day that a source gives.
We ran none but ours. A stack changes from month to month: check the source before you build on a line.
Where something was not found, it may exist all the same. Where a cell names several, you configure one.</p>
{_map()}
<p class="source">{kinds}.</p>
<h2 id="use">How to use it</h2>
<ul><li>Begin with what you cannot change: your model's size, your cluster, the engine that you serve with.</li>
<li>Then ask what a lost machine costs you, and look at the last column.</li>
<li>Read the sources of the two or three stacks that are left, at their present version.</li></ul>
<p>Another comparison of sixteen libraries is
<a href="https://huggingface.co/blog/async-rl-training-landscape">Keep the Tokens Flowing</a>, of March 2026.</p>
<h2 id="job">One job in five of them</h2>
<p>GRPO, a policy that uses tools, two generators apart from the trainer, and data at most four versions old where the stack counts versions.
Flags are those of each stack's documentation; the values are ours.</p>
{"".join(_launch(index) for index in range(len(LAUNCHES)))}
<h3 id="knobs">The same knob, five names</h3>
<p>Where the age of data is counted in versions, one weight update makes one.
A queue of four batches only says how far generation may run ahead: how old a batch is when the trainer takes it follows from that.</p>
{_table("The same knob, five names", ["", *(launch.stack for launch in LAUNCHES)], ([what, *names] for what, names in KNOBS.items()))}
<h2 id="stacks">Stack by stack</h2>
{"".join(map(_details, STACKS))}"""


def anchor(name: str) -> str:
    """Return the place of a stack on the page.

    >>> anchor("Zorplex RL (ours)")
    'stack-zorplex-rl-ours'
    """
    return "stack-" + re.sub(r"\W+", "-", name.lower()).strip("-")


def _map() -> str:
    heads = "".join(
        f'<th scope="col" title="{html.escape(question)}">{html.escape(axis)}</th>'
        for axis, question in ({"stack": ""} | AXES).items()
    )
    rows = "".join(
        f'<tr><th scope="row"><a href="#{anchor(stack.name)}">{html.escape(stack.name)}</a></th>'
        f"{''.join(f'<td>{inline(cell.kind)}</td>' for cell in stack.cells)}</tr>\n"
        for stack in STACKS
    )
    return (
        f'<div class="lesson-table" tabindex="0" role="region" aria-label="Sixteen stacks on eight axes"><table class="sortable">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
    )


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(
        f'<th scope="col">{html.escape(head)}</th>' if head else "<td></td>" for head in heads
    )
    body = "".join(
        f'<tr><th scope="row">{inline(first)}</th>{"".join(f"<td>{inline(cell)}</td>" for cell in others)}</tr>\n'
        for first, *others in rows
    )
    return (
        f'<div class="lesson-table" tabindex="0" role="region" aria-label="{caption}"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _launch(index: int) -> str:
    launch = LAUNCHES[index]
    links = "; ".join(_link(source) for source in launch.sources)
    return f"<h3>{html.escape(launch.stack)}</h3>\n{block(fence(launch.command))}\n<p>{inline(f'{launch.note} Read in {links}.')}</p>\n"


def _details(stack: Stack) -> str:
    lines = "".join(
        f"<dt>{html.escape(axis)}</dt><dd>{_line(stack, cell)}</dd>\n"
        for axis, cell in zip(AXES, stack.cells, strict=True)
    )
    sources = "".join(f"<li>{inline(_link(source))}</li>" for source in stack.sources)
    return (
        f'<h3 id="{anchor(stack.name)}">{html.escape(stack.name)}</h3>\n<dl class="stack">{lines}</dl>\n'
        f"<details><summary>Sources</summary><ol>{sources}</ol></details>\n"
    )


def _line(stack: Stack, cell: Cell) -> str:
    numbers = ", ".join(_numbered(stack, number) for number in cell.read_in)
    return f"<b>{inline(cell.kind)}</b>: {inline(cell.said)} <small>{inline(numbers)}</small>"


def _numbered(stack: Stack, number: int) -> str:
    address = stack.sources[number - 1].address
    return f"[{number}]({address})" if address.startswith("https://") else str(number)


def _link(source: Source) -> str:
    """Return Markdown that names a source and its version, and links it where it is a page."""
    if not source.address.startswith("https://"):
        return f"{source.address}, {source.version}"
    return f"[{short(source.address)}]({source.address}), {source.version}"


def short(address: str) -> str:
    """Return a short name for a page.

    >>> short("https://github.com/THUDM/slime/blob/4da70cf/docs/usage.md"), short("https://github.com/THUDM/slime/pull/2278")
    ('THUDM/slime: docs/usage.md', 'THUDM/slime: pull/2278')
    """
    parts = address.removeprefix("https://").split("/")
    if parts[0] != "github.com":
        return f"{parts[0]}: {parts[-1]}"
    rest = parts[5:] if parts[3] == "blob" else parts[3:]
    return f"{'/'.join(parts[1:3])}: {'/'.join(rest)}"
