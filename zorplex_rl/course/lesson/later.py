"""Import a module when it is first used: the top of a page shows while torch is still to come.

torch = later("torch")      in a notebook's setup cell, which runs before all others
torch.tensor([1.0])         here it is imported
"""

import sys
from importlib import import_module
from typing import Any

PROBED = ("cursor",)
"""What marimo 0.25 asks of every global variable."""


class later:
    """Stand for the module ``name``, and hand out what is in it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        # marimo looks whether a value can show itself, or is a database; that is no use of it.
        if (attribute.startswith("_") or attribute in PROBED) and self._name not in sys.modules:
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)

    def __repr__(self) -> str:
        return f"later({self._name!r})"
