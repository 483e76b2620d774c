"""Show the replicas of a service live: their state, their load, and the counters of the service.

board = ServiceBoard(queue_limit=options.queue)
board.show(service.status())             # repeat it while you do something to the service
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import traitlets

from zorplex_rl.course.widgets.widget import Widget


class ServiceBoard(Widget, script="service_board.js"):
    """Show one row per replica (state, process, requests, age) and the counters of the whole service.

    ``queue_limit`` is the length of a full queue; without it, queues are drawn relative to the longest one.
    """

    status = traitlets.Dict().tag(sync=True)
    queue_limit = traitlets.Int(0).tag(sync=True)

    def __init__(self, status: Any = None, queue_limit: int = 0) -> None:
        super().__init__(queue_limit=queue_limit)
        if status is not None:
            self.show(status)

    def show(self, status: Any) -> None:
        """Show a ``ServiceStatus``, or a mapping with the same names: ``replicas`` is a list of rows, the rest are numbers of the service."""
        found = dict(status) if isinstance(status, Mapping) else asdict(status)
        self.status = found | {"replicas": [dict(row) for row in found["replicas"]]}

    @staticmethod
    def drawn(state: Mapping[str, Any]) -> str:
        from zorplex_rl.course.lesson.lesson import table
        from zorplex_rl.course.lesson.markup import quote

        status = state["status"]
        if not status:
            return ""
        names = {
            "place": "place",
            "replica": "replica",
            "state": "state",
            "in_flight": "at work",
            "requests": "answered",
        }
        rows = [
            {
                shown: quote(row[name]) if name == "replica" else row[name]
                for name, shown in names.items()
                if name in row
            }
            for row in status["replicas"]
        ]
        return table(f"Service {quote(status.get('name', ''))}, as the run left it", rows).text
