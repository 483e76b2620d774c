"""Show the bytes that every source sends to every destination, for one or several ways of sharding.

    moves = [(move.source, move.destination, move.bytes) for move in plan]
    ReshardMap({"FSDP 4 → TP 2": byte_matrix(moves, 4, 2)}, sources="trainer", destinations="generator")

Options may be named by tuples; each position of the tuple then gets its own row of choices:

    ReshardMap({("rows", "columns"): [[…]], ("rows", "whole"): [[…]], …}, axes=("trainer holds", "generators want"))

Every combination of the choices must be given. The page computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import traitlets

from zorplex_rl.course.widgets.widget import Widget

Matrix = Sequence[Sequence[int]]


class ReshardMap(Widget, script="reshard_map.js"):
    """Show a table of bytes: rows are sources, columns destinations, shades sizes.

    Raises ValueError if an option lacks a name for an axis, or if a combination is missing.
    """

    data = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        options: Mapping[str | tuple[str, ...], Matrix],
        sources: str = "source",
        destinations: str = "destination",
        axes: Sequence[str] = ("Sharding",),
        notes: Mapping[str | tuple[str, ...], str] | None = None,
    ) -> None:
        matrices = {
            _key(name): [list(map(int, row)) for row in matrix] for name, matrix in options.items()
        }
        remarks = {_key(name): note for name, note in (notes or {}).items()}
        choices = [list(dict.fromkeys(column)) for column in zip(*matrices, strict=True)]
        if len(choices) != len(axes):
            raise ValueError(
                f"the options are named by {len(choices)} words each, but there are {len(axes)} axes; give a name to each"
            )
        if missing := [key for key in product(*choices) if key not in matrices]:
            raise ValueError(
                f"there is no matrix for {' / '.join(missing[0])}; give one for every combination"
            )
        results = [matrices[key] for key in product(*choices)]
        super().__init__(
            data={
                "axes": [[name, names] for name, names in zip(axes, choices, strict=True)],
                "results": results,
                "notes": [remarks.get(key, "") for key in product(*choices)],
                "sources": sources,
                "destinations": destinations,
            }
        )

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        from zorplex_rl.course.lesson.lesson import table

        data = state["data"]
        chosen = ", ".join(f"{name}: {names[0]}" for name, names in data["axes"])
        rows = [
            {data["sources"]: source}
            | {
                f"to {data['destinations']} {number}": f"{count:,}"
                for number, count in enumerate(row)
            }
            for source, row in enumerate(data["results"][0])
        ]
        others = len(data["results"]) - 1
        return table(
            f"Bytes for {chosen}" + (f" (one of {others + 1} choices)" if others else ""), rows
        ).text


def byte_matrix(
    moves: Iterable[tuple[int, int, int]], sources: int, destinations: int
) -> list[list[int]]:
    """Sum ``moves``, each (source, destination, bytes), as ``[sources][destinations]``.

    >>> byte_matrix([(0, 1, 10), (0, 1, 5), (2, 0, 7)], sources=3, destinations=2)
    [[0, 15], [0, 0], [7, 0]]
    """
    matrix = [[0] * destinations for _ in range(sources)]
    for source, destination, count in moves:
        matrix[source][destination] += count
    return matrix


def _key(name: Any) -> tuple[str, ...]:
    return (name,) if isinstance(name, str) else tuple(name)
