"""Keep each notebook's seconds and its machine's speed: ``workshop/notebook_seconds.json``.

    ./build_site.sh site --record workshop/notebook_seconds.json

writes it anew. ``zorplex-rl check`` multiplies these seconds by the ratio of two calibrations; the
rule for a notebook's minutes counts them too.
"""

import json
import statistics
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from zorplex_rl.course import FILES

RECORDED = FILES / "workshop" / "notebook_seconds.json"


def record(file: Path, machine: str, calibration: float, seconds: Mapping[str, float]) -> None:
    """Write the ``seconds`` of each notebook, and the seconds of a step on this machine as ``calibration``."""
    found = {
        "measured": date.today().isoformat(),
        "machine": machine,
        "calibration": round(calibration, 4),
    }
    file.write_text(
        json.dumps(found | {"seconds": dict(seconds)}, indent=2, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


def seconds_per_step(limit: float = 10.0) -> float:
    """Return the median seconds of a step of the simplest trainer on one thread, with 4 × 4
    episodes, begun within ``limit`` seconds: the ratio of two machines' figures tells how much
    longer notebooks take on one of them."""
    import torch

    from zorplex_rl.learning.train_simple import train
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.task.environment import Zorplex, kinds_of

    began, threads = time.monotonic(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds: list[float] = []
        for step in train(load_policy(), Zorplex(), kinds_of("compositional"), 13, 4, 4):
            seconds.append(step.seconds)
            if time.monotonic() - began + max(seconds) > limit:
                break
        # The first step also pays for what torch sets up once.
        return statistics.median(seconds[1:] or seconds)
    finally:
        torch.set_num_threads(threads)
