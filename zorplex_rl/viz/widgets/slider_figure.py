"""Show the figure and the few numbers that belong to the positions of some sliders.

    def answer(max_lag):
        return {"figure": timeline_chart(…), "numbers": [["Wall time", "12.3 s", "simulated"]]}

    SliderFigure("One lag bound", {"max_lag": ("Max lag", [0, 1, 2])}, answer, {"max_lag": 1}, static="execute" in mo.cli_args())

``answer`` is given one value for every slider. It returns an SVG figure of ``viz`` and rows of name, text and note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zorplex_rl.viz.widgets.widget import Params, Simulator, tabulate

Answer = Callable[..., dict[str, Any]]


class SliderFigure(Simulator, script="slider_figure.js"):
    """Show ``answer`` at the sliders' positions. ``axes`` maps each argument of ``answer`` to the slider's label and its values.

    Raises ValueError if ``start`` is not a position of the sliders.
    """

    def __init__(
        self,
        label: str,
        axes: Mapping[str, tuple[str, Sequence[Any]]],
        answer: Answer,
        start: Params,
        static: bool = False,
    ) -> None:
        if start.keys() != axes.keys() or any(start[name] not in values for name, (_, values) in axes.items()):
            raise ValueError(f"start is {start}; expected one value of every slider: {dict(axes)}")
        self._values = {name: list(values) for name, (_, values) in axes.items()}
        self._figure_of = answer
        controls = {"label": label, "axes": [[name, said, list(values)] for name, (said, values) in axes.items()]}
        super().__init__(static, params=start, controls=controls)

    def answer(self, params: Params) -> dict[str, Any]:
        return self._figure_of(**params)

    def make_table(self) -> dict[str, Any]:
        return tabulate(self._values, self._figure_of)

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        from zorplex_rl.viz.lesson import table

        chosen = ", ".join(f"{said} {state['params'][name]}" for name, said, _ in state["controls"]["axes"])
        rows = [{"": name, chosen: text, "what it is": note} for name, text, note in state["result"].get("numbers", [])]
        return state["result"].get("figure", "") + table(state["controls"]["label"], rows).text
