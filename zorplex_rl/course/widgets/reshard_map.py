"""Show the bytes that every source sends to every destination, for several ways of sharding.

    ReshardMap({("rows", "columns"): [[…]], ("rows", "whole"): [[…]], …}, axes=("trainer holds", "generators want"))

An option is named by a tuple; each position of it gets its own row of choices. Every combination of
the choices must be given. The page computes nothing.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import traitlets

from zorplex_rl.course.widgets.widget import Widget

Matrix = Sequence[Sequence[int]]


class ReshardMap(Widget, script="reshard_map.js"):
    """Show a table of bytes: rows are sources, columns destinations, shades sizes."""

    data = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        options: Mapping[tuple[str, ...], Matrix],
        sources: str = "source",
        destinations: str = "destination",
        axes: Sequence[str] = ("Sharding",),
    ) -> None:
        choices = [list(dict.fromkeys(column)) for column in zip(*options, strict=True)]
        results = [[list(map(int, row)) for row in options[key]] for key in product(*choices)]
        super().__init__(
            data={
                "axes": [[name, names] for name, names in zip(axes, choices, strict=True)],
                "results": results,
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
