"""Long work on a page: a button that says its seconds, a bar that counts, and cells that wait.

    start = lesson.start_button("Train 20 steps", seconds=30)       shown in one cell; whatever takes more than 3 s has one

    lesson.wait_for(start)                                          the next cell begins with it
    with lesson.counting(20, "steps") as one_more:                  the bar is there from the first second, and gone at the end
        train(on_step=one_more)                                     callable with anything, from threads and coroutines, too

Count what the reader asked for (questions, steps, episodes), not the parts of the program.

**An exercise never waits behind a measurement.** marimo runs cells in the order of their data, one at a time. So:

    stub ──► feedback             depends on nothing else: it answers at once
      └────► running ──► result   needs seconds: it begins with ``wait_for``, and a new try shows "Waits for the button"

A cell that needs both an exercise and results of another button says ``lesson.needs(lambda: results)`` first: they may
not be there yet. In an export and in a script no button is shown, and nothing waits.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import isnan
from threading import Event
from types import SimpleNamespace
from typing import Any

import marimo as mo

WAITS = "<p data-lesson-waiting><em>Waits for the button above and its run.</em></p>"
INTERRUPTED = "<p data-lesson-waiting><em>Interrupted. The button above starts it again.</em></p>"
EVERY_S = 0.25
"""Seconds between two looks at what a bar counts."""


def unattended() -> bool:
    """Return True if no reader can press a button: in an export, or in a script."""
    return (
        not mo.running_in_notebook()
        or "execute" in mo.cli_args()
        or mo.app_meta().mode not in ("edit", "run")
    )


def brief(full: SimpleNamespace, **sizes: int) -> SimpleNamespace:
    """Return the settings ``full``, with these ``sizes`` where ``ZORPLEX_BRIEF`` is set: for a build
    that nobody reads, which checks that every cell runs."""
    if not os.environ.get("ZORPLEX_BRIEF"):
        return full
    return SimpleNamespace(**vars(full) | sizes)


def start_button(label: str, seconds: float) -> Any:
    """Make a button for a long cell of ``seconds`` (or NaN); ``unattended`` it is pressed.

    Show it in one cell and begin the long cell with ``lesson.wait_for(button)``.
    """
    if unattended():
        return _Pressed()
    about = "" if isnan(seconds) else f" (about {seconds:.0f} s)"
    return mo.ui.run_button(label=label + about, kind="success")


def wait_for(button: Any, unless: Any = None) -> None:
    """Stop this cell, and all cells that depend on it, until ``button`` is pressed, ``unless`` its result
    is there (a ``Kept``). A press forgets what was kept."""
    if unless is not None and button.value:
        unless.forget()
    mo.stop(not button.value and not (unless is not None and unless.there), mo.Html(WAITS))
    # Else that would stand there until this cell has ended.
    mo.output.clear()


def needs(results: Callable[[], object]) -> None:
    """Stop this cell, and all cells that depend on it, until there are ``results``, which come from
    a cell that waits for a button. When a learner edits an exercise, marimo runs what depends on
    it, whether the rest that it needs is there or not."""
    try:
        results()
    except NameError:
        mo.stop(True, mo.Html(WAITS))


class _Pressed:
    """Stand in for a button that was pressed; shows nothing."""

    value = True

    def _mime_(self) -> tuple[str, str]:
        return "text/plain", ""


@contextmanager
def counting(total: int | None, what: str, title: str = "") -> Iterator[Callable[..., None]]:
    """Show a bar of ``total`` steps (or questions: ``what``) while the block runs. Yields what counts one more of them.

    That may be called with any arguments, in any thread: pass it where a callback is asked for. Called as
    ``one_more(number=3)`` it counts three. Where nothing can be counted (processes start), ``total`` is None, and the
    seconds are shown. *Interrupt* ends the block, and the cell says how to go on; so a time limit of asyncio belongs
    into the block, not around it.
    """
    done: list[int] = []
    over = Event()

    def one_more(*ignored: Any, number: int = 1, **also: Any) -> None:
        done.append(number)

    def show() -> None:
        begun, drawn = time.monotonic(), 0
        while not over.wait(EVERY_S):
            new = sum(done) - drawn
            drawn += new
            since = f"{what}, since {time.monotonic() - begun:.0f} s"
            bar.update(subtitle=since, **({} if total is None else {"increment": new}))

    bar_of: Any = (
        mo.status.spinner
        if total is None
        else partial(mo.status.progress_bar, total=total, show_rate=False)
    )
    with bar_of(title=title or None, subtitle=what, remove_on_exit=True) as bar:
        # marimo's own thread may draw below the cell, whatever the cell itself is waiting for.
        shown = mo.Thread(target=show, daemon=True)
        shown.start()
        try:
            yield one_more
        except (KeyboardInterrupt, asyncio.CancelledError):
            mo.stop(True, mo.Html(INTERRUPTED))
        finally:
            over.set()
            shown.join()
