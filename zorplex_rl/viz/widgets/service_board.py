"""The service board: the replicas of a service, what they are doing and what became of them, live.

board = ServiceBoard(queue_limit=options.queue)
board.show(service.status())             # again and again, while something happens to the service
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import traitlets

from zorplex_rl.viz.widgets.widget import Widget


class ServiceBoard(Widget, script="service_board.js"):
    """One row for every replica: state, process, queue, requests, age; and the counters of the whole service.

    ``queue_limit`` is what a full queue holds; without it queues are drawn against the longest.
    """

    status = traitlets.Dict().tag(sync=True)
    queue_limit = traitlets.Int(0).tag(sync=True)

    def __init__(self, status: Any = None, queue_limit: int = 0) -> None:
        super().__init__(queue_limit=queue_limit)
        if status is not None:
            self.show(status)

    def show(self, status: Any) -> None:
        """Show a ``ServiceStatus``, or a mapping with the same names: ``replicas`` is a list of rows, all else is a number of the whole service."""
        found = dict(status) if isinstance(status, Mapping) else status.as_dict()
        self.status = found | {"replicas": [dict(row) for row in found["replicas"]]}
