"""Render a cell as plain HTML: highlighted code and outputs, without marimo's own elements.

Widgets (anywidget) become an empty element that ``widgets.js`` fills. Any other element of marimo
is ``undrawable``: it needs marimo's front end, and most of them are controls that no kernel would
answer.
"""

import ast
import html
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser

from zorplex_rl.course.lesson.markup import leads_to_a_page

_FENCED = re.compile(
    r'(<div class="[^"]*\bcodehilite">)<pre[^>]*>(?:<span></span>)?<code[^>]*>(.*?)\n?</code></pre>',
    re.DOTALL,
)
WIDGET, WRAPPER = "marimo-anywidget", "marimo-ui-element"


def render_cell(
    code: str, markup: str, text: str, images: Sequence[tuple[str, str]], printed: str
) -> str:
    """Return the cell's HTML: code, output, printed text."""
    parts = (
        [_fold("Code", len(code.splitlines()), highlight(code), "code", opened=True)]
        if code
        else []
    )
    if markup:
        parts.append(plain(markup))
    elif text:
        parts.append(f"<pre>{html.escape(text)}</pre>")
    parts += [f'<img src="{html.escape(source)}" alt="">' for _, source in images]
    if printed.strip():
        parts.append(f"<pre>{html.escape(printed)}</pre>")
    return f'<div class="cell">{"".join(parts)}</div>' if parts else ""


def folded_code(code: str) -> str:
    """Return the code of a hidden cell below one line that opens it; empty if it only shows
    something, or belongs to an exercise."""
    body = ast.parse(code).body
    defined = [name for statement in body for name in _defines(statement)]
    if defined in ([], ["Solutions"]):
        return ""
    what = (
        "Setup"
        if all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in body)
        else "Plumbing"
    )
    return _fold(what, len(code.strip().splitlines()), highlight(code.strip()))


def with_fewer_folds(content: str) -> str:
    """Return ``content`` with one fold for the code of hidden cells that follow each other with
    nothing between them."""
    fold = r'<details class="plumbing"><summary>Plumbing, (\d+) lines?</summary>((?:(?!</details>).)*)</details>\s*'

    def join(run: re.Match[str]) -> str:
        counts, codes = zip(*re.findall(fold, run[0], re.DOTALL), strict=True)
        return _fold("Plumbing", sum(map(int, counts)), "".join(codes)) + "\n"

    return re.sub(f"(?:{fold}){{2,}}", join, content, flags=re.DOTALL)


def _fold(what: str, count: int, code: str, kind: str = "plumbing", opened: bool = False) -> str:
    lines = "1 line" if count == 1 else f"{count} lines"
    return f'<details class="{kind}"{" open" * opened}><summary>{what}, {lines}</summary>{code}</details>'


def _defines(statement: ast.stmt) -> list[str]:
    """Return the names that other cells may use; those that only hold something to show
    (``lesson.…``) do not count."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name for alias in statement.names]
        case ast.Assign(value=ast.Call(func=ast.Attribute(value=ast.Name(id="lesson" | "mo")))):
            return []
        case ast.Expr() | ast.Return():
            return []
    stored = (
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return [node.id for node in stored if not node.id.startswith("_")]


def highlight(code: str) -> str:
    """Highlight Python source with classes of Pygments; ``site.css`` defines their colours."""
    from pygments import highlight as colour
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    body = colour(code, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip()
    return f'<pre class="codehilite"><code>{hanging(body)}</code></pre>'


def hanging(code: str) -> str:
    """Make every line of highlighted ``code`` an element that knows its indentation, so that a long
    line goes on further to the right.

    Code is never cut then, and nothing of it has to scroll. The line break stays within its line:
    copied, or without a style sheet, code is the same.

    >>> hanging("if <b>a</b>:\\n    b")
    '<span class="line" style="--in:0">if <b>a</b>:\\n</span><span class="line" style="--in:4">    b</span>'
    """
    lines = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", code):
        text = re.sub(r"<[^>]+>", "", line).rstrip("\n")
        lines.append(
            f'<span class="line" style="--in:{len(text) - len(text.lstrip())}">{line}</span>'
        )
    return "".join(lines)


def undrawable(markup: str) -> str | None:
    """Return the first of marimo's elements in ``markup`` that needs its front end, or None."""
    names = re.findall(r"<(marimo-[\w-]+)", markup)
    return next((f"<{name}>" for name in names if name not in (WIDGET, WRAPPER)), None)


def plain(markup: str) -> str:
    """Remove marimo's elements and everything that would run: scripts, event handlers, addresses
    that are programs.

    >>> plain('<marimo-ui-element><marimo-anywidget data-model-id="&quot;a1&quot;"></marimo-anywidget></marimo-ui-element>')
    '<div class="widget" data-model="a1"></div>'
    >>> plain('<p>so<script>f()</script></p>')
    '<p>so</p>'
    >>> plain('<p class="a" onclick="f()">so <a href="javascript:f()">on</a></p>')
    '<p class="a">so <a>on</a></p>'
    """
    cleaner = _Cleaner()
    cleaner.feed(markup)
    cleaner.close()
    return _FENCED.sub(
        lambda found: f"{found[1]}<pre><code>{hanging(found[2])}</code></pre>",
        "".join(cleaner.kept),
    )


class _Cleaner(HTMLParser):
    """Copy the source of every tag except scripts and marimo's elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.kept: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self._in_script = True
        elif tag == WIDGET:
            model = json.loads(dict(attrs)["data-model-id"] or '""')
            self.kept.append(f'<div class="widget" data-model="{html.escape(model)}"></div>')
        elif not tag.startswith("marimo-"):
            self.kept.append(self._without_programs(tag, attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "script" and not tag.startswith("marimo-"):
            self.kept.append(self._without_programs(tag, attrs))

    def _without_programs(self, tag: str, attrs: list[tuple[str, str | None]]) -> str:
        """Return the tag as in the source, or rewritten without the attributes that would run
        something."""
        kept = [(name, value) for name, value in attrs if not _is_program(name, value or "")]
        source = self.get_starttag_text() or ""
        if kept == attrs:
            return source
        written = "".join(f' {name}="{html.escape(value or "")}"' for name, value in kept)
        return f"<{tag}{written}{'/' if source.endswith('/>') else ''}>"

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_script = False
        elif not tag.startswith("marimo-"):
            self.kept.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self._in_script:
            self.kept.append(data)

    def handle_entityref(self, name: str) -> None:
        self.kept.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.kept.append(f"&#{name};")


def _is_program(name: str, value: str) -> bool:
    """Return True if an attribute runs something when the page is shown or used."""
    if name in ("href", "xlink:href", "src", "action", "formaction"):
        return not leads_to_a_page(value) and not value.startswith("data:image/")
    return name.startswith("on") or name == "srcdoc"
