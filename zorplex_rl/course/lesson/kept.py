"""Keep a long result for the next time that somebody opens the page.

    trained = lesson.Kept(__file__, "smollm2_steps", steps=config.steps, rate=config.rate)
    lesson.wait_for(start, unless=trained)              goes on at once if the result is there; a press computes it anew
    rows = trained.get(lambda: train_real(…))           the lambda runs only if it is not
    trained.note                                        says where it lies, and how to be rid of it

A result is found again by its name, the settings and the version of the package, and by nothing else: give all that it
depends on as a setting, a learner's function as its source (``exercise.solution_source``). It is pickled, so it is plain
data (numbers, lists, tensors), never an actor, a mesh or what holds one: those end with the notebook.

marimo's ``persistent_cache`` keeps it in ``__marimo__/cache/NAME`` beside the notebook, which git ignores. In an export
and in a script nothing is kept and nothing is found: there, every number is computed.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import marimo as mo

from zorplex_rl import __version__
from zorplex_rl.course.lesson.markup import quote
from zorplex_rl.course.lesson.waiting import unattended

# What the function that marimo caches runs. Were it a part of that function, marimo would take it, and all that it
# uses, for a part of the key.
_WORK: list[Callable[[], Any]] = []


class Kept:
    """Stand for the result ``name`` of the page ``notebook`` (``__file__``) with these ``settings``."""

    def __init__(self, notebook: str, name: str, **settings: Any) -> None:
        self.folder = Path(notebook).resolve().parent / "__marimo__" / "cache" / name
        self._key = repr((__version__, sorted(settings.items())))

    @property
    def there(self) -> bool:
        """Whether the result was computed before, by a reader of this page."""
        if unattended() or not self.folder.is_dir():
            return False
        try:
            self._cached(_fail)
        except LookupError:
            return False
        return True

    def get(self, compute: Callable[[], Any]) -> Any:
        """Return the result; ``compute`` is called only if it is not there."""
        return compute() if unattended() else self._cached(compute)

    def forget(self) -> None:
        """Remove the result, for all settings."""
        if not unattended():
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def note(self) -> str:
        """Return a sentence for the page, Markdown; nothing where nothing is kept."""
        if unattended():
            return ""
        return f"Computed once and kept in {quote(self.folder)}. The button computes it anew; without that folder it is forgotten."

    def _cached(self, compute: Callable[[], Any]) -> Any:
        def result(key: str) -> Any:
            return _WORK[-1]()

        result.__name__ = self.folder.name
        _WORK.append(compute)
        try:
            return mo.persistent_cache(save_path=str(self.folder.parent))(result)(self._key)
        finally:
            _WORK.pop()


def _fail() -> None:
    raise LookupError("not kept")
