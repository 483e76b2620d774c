"""Draw the processes of a job, from the ids that were found."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from zorplex_rl.run import figure as style
from zorplex_rl.run.figure import WIDTH, drawing

DASHED = 'rx="10" fill="none" stroke="currentColor" stroke-dasharray="6 5"'
SOLID = 'rx="8" fill-opacity="0.06" stroke="currentColor"'


def processes_drawing(controller: int, hosts: Mapping[int, Mapping[int, str]]) -> str:
    """Draw the ``controller``, the ``hosts``, and their processes: {id: what is in it}. Returns SVG."""

    def box(
        x: int, y: int, width: int, height: int, text: str, look: str = SOLID, down: int = 28
    ) -> str:
        return (
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" {look}/>'
            f'<text x="{x + width // 2}" y="{y + down}" text-anchor="middle">{escape(text)}</text>'
        )

    width, shapes = (
        WIDTH // max(len(hosts), 1),
        box(210, 10, 300, 46, f"your notebook: process {controller}"),
    )
    for number, (host, processes) in enumerate(hosts.items()):
        left, height = number * width, 54 + 58 * len(processes)
        shapes += box(
            left + 8, 104, width - 16, height, f"host {number}: process {host}", DASHED, 24
        )
        shapes += (
            f'<path d="M360 56 {left + width // 2} 100" stroke="{style.BLUE}" stroke-width="2"/>'
        )
        for row, (process, inside) in enumerate(processes.items()):
            shapes += box(left + 24, 142 + 58 * row, width - 48, 46, f"process {process}: {inside}")
    most = max((len(processes) for processes in hosts.values()), default=0)
    said = "; ".join(
        f"host process {host} started {', '.join(map(str, inside))}"
        for host, inside in hosts.items()
    )
    return drawing(
        shapes,
        174 + 58 * most,
        "The processes of this job",
        f"process {controller} started all; {said}",
    )
