"""Train on the nodes of a Slurm cluster: Monarch's SlurmJob starts a worker on each.

    python examples/slurm.py --out runs/mix --nodes 4 --partition gpu --task mix --steps 500

Run it where jobs are submitted, with Python and the packages at the same path on every node. The
policy is sent to the nodes, and only this machine writes the run's folder. SlurmJob's workers speak
plain TCP: use it on a network that you trust. A run that was cut off is continued with
``zorplex-rl train --resume``, on this machine or with ``--hosts attach:…``.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from monarch.job import SlurmJob

from zorplex_rl.cli.live import LiveView
from zorplex_rl.config import Config
from zorplex_rl.run.folder import RunFolder
from zorplex_rl.training.loop import run_training


@dataclass(frozen=True)
class Options:
    out: Path
    """The run's folder."""
    config: tyro.conf.OmitArgPrefixes[Config] = field(default_factory=lambda: Config(hosts="job"))
    nodes: int = 2
    partition: str | None = None
    gpus_per_node: int | None = None
    time_limit: str = "04:00:00"
    wait: int = 3600
    """Seconds for which the job may wait for its nodes."""


def main(options: Options) -> None:
    config = options.config
    config.check()
    folder = RunFolder.create(options.out, config)
    job = SlurmJob(
        {"hosts": options.nodes},
        sys.executable,
        partition=options.partition,
        gpus_per_node=options.gpus_per_node,
        time_limit=options.time_limit,
        job_start_timeout=options.wait,
        log_dir=str(folder.path / "slurm"),
    )
    job.apply()
    try:
        hosts = job.state(cached_path=None).hosts
        meshes = [hosts.slice(hosts=number) for number in range(options.nodes)]
        with LiveView(config.steps) as view:
            training = run_training(
                config,
                folder,
                None,
                view.update,
                view.log,
                meshes=meshes,
            )
            _, after = asyncio.run(training)
        print(f"held-out accuracy {after['greedy_accuracy']:.2f}; everything is in {options.out}")
    finally:
        job.kill()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
