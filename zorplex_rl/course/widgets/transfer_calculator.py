"""Compute how long a model takes over every link: its bytes divided by the link's bandwidth.

    TransferCalculator({"message": 0.3, "shared memory": 9.0}, {"a 400 Gb/s card": 50.0}, static="execute" in mo.cli_args())

Sliders set the number of parameters and the bytes of each. One reader, one link, nothing else on
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zorplex_rl.course.widgets.widget import Axes, Params, Simulator, tabulate

AXES: Axes = {"billions": [0.001, 0.5, 1, 3, 7, 14, 32, 70, 235, 1000], "bytes_each": [1, 2, 4]}


class TransferCalculator(Simulator, script="transfer_calculator.js"):
    """Show one row for each link, in GB/s: first the ``measured`` ones, then the ``published``
    ones. ``static`` is for a page without a kernel.

    Raises ValueError for a value that no slider offers, and for a link without bandwidth.
    """

    def __init__(
        self,
        measured: Mapping[str, float],
        published: Mapping[str, float] | None = None,
        static: bool = False,
        billions: float = 7,
        bytes_each: int = 2,
    ) -> None:
        links: list[list[Any]] = [[name, rate, True] for name, rate in measured.items()]
        links += [[name, rate, False] for name, rate in (published or {}).items()]
        params = {"billions": billions, "bytes_each": bytes_each}
        for name, value in params.items():
            if value not in AXES[name]:
                raise ValueError(f"{name} is {value}; the widget can show {', '.join(map(str, AXES[name]))}")
        for name, rate, _ in links:
            if not rate > 0:
                raise ValueError(f"the link {name!r} has {rate} GB/s; give a bandwidth above 0")
        self.links = links
        super().__init__(static, params=params, controls={"axes": dict(AXES)})

    def answer(self, params: Params) -> dict[str, Any]:
        return answer(self.links, **{name: params[name] for name in AXES})

    def make_table(self) -> dict[str, Any]:
        return tabulate(AXES, lambda **params: answer(self.links, **params))

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        from zorplex_rl.course.lesson.lesson import table

        params, result = state["params"], state["result"]
        rows = [
            {"link": name, "GB/s": f"{rate:.3g}", "one copy of the model": said}
            for name, rate, _, _, said in result["rows"]
        ]
        model = f"{params['billions']:g} billion parameters of {params['bytes_each']} bytes, {result['size']}"
        return table(f"{model}; the sliders choose other sizes", rows).text


def answer(links: list[list[Any]], billions: float, bytes_each: int) -> dict[str, Any]:
    """Return the size of the model as text, and for each link [name, GB/s, measured, seconds,
    seconds as text].

    >>> answer([["a card", 50.0, False]], billions=70, bytes_each=2)
    {'size': '140 GB', 'rows': [['a card', 50.0, False, 2.8, '2.8 s']]}
    """
    gigabytes = billions * bytes_each
    rows = [[name, rate, measured, gigabytes / rate, in_words(gigabytes / rate)] for name, rate, measured in links]
    return {"size": f"{gigabytes:g} GB" if gigabytes >= 1 else f"{1000 * gigabytes:g} MB", "rows": rows}


def in_words(seconds: float) -> str:
    """Return a duration with two digits or more, in the unit that suits it.

    >>> [in_words(seconds) for seconds in (0.00004, 0.0125, 2.84, 90, 5400, 200_000)]
    ['0.04 ms', '12 ms', '2.8 s', '90 s', '90 min', '56 hours']
    """
    if seconds < 0.995:
        return f"{1e3 * seconds:.2g} ms" if seconds < 0.0995 else f"{1e3 * seconds:.0f} ms"
    for unit, length, limit in (("s", 1, 100), ("min", 60, 6000), ("hours", 3600, 360_000)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}" if seconds / length >= 9.95 else f"{seconds / length:.1f} {unit}"
    return f"{seconds / 86400:.0f} days"
