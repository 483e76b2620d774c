"""Check what a run needs before any of it is started, and show which process goes where."""

import importlib.util
import os
from pathlib import Path

from zorplex_rl.cli.size import expect_fit
from zorplex_rl.config import Config
from zorplex_rl.errors import ConfigError


def check_needs(config: Config) -> Path:
    """Check what a run of ``config`` needs. Returns its policy's folder. Raises ConfigError for the
    first thing that is wrong."""
    if config.telemetry and os.environ.get("MONARCH_FILE_LOG", "error") in ("error", "warn"):
        # At these levels, read at its first import, Monarch records no spans for a trace. A program
        # that has imported ``runtime.py`` and started this one has left them: errors alone.
        os.environ["MONARCH_FILE_LOG"] = "info"
    from zorplex_rl.services.tls import TLS

    if config.cluster.tls:
        # Likewise.
        os.environ[TLS] = config.cluster.tls
    from zorplex_rl.policy.load import policy_folder, token_counter
    from zorplex_rl.task.own_task import EnvironmentSource
    from zorplex_rl.training.devices import assign_devices, names_of_ranks, one_each, roles_with_models
    from zorplex_rl.training.hosts.checks import check_cluster
    from zorplex_rl.training.hosts.spec import check_hosts

    config.check()
    check_hosts(config)
    check_cluster(config)
    environment = EnvironmentSource.of(config)
    environment.make()
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard needs the package tensorboard; install it, or leave the flag out")
    source = policy_folder(config.policy)
    devices = assign_devices(config.device, roles_with_models(config))
    expect_fit(config, source, token_counter(source), devices, environment)
    if config.cluster.hosts == "this":
        ranks = names_of_ranks(config.services.trainer_processes)
        one_each(list(assign_devices(config.device, ranks).values()))
    return source


def show_plan(config: Config) -> int:
    from zorplex_rl.training.hosts.checks import cluster_request
    from zorplex_rl.training.hosts.placement import PlanRow

    config.check()
    # First, so that what is refused gets its sentence and nothing else.
    rows, request = PlanRow.rows(config), cluster_request(config)
    width = max(len(row.host) for row in rows)
    for row in rows:
        print(f"{row.host:<{width}}  {', '.join(row.replicas) or '—'}")
    if request:
        print(f"\n{request}")
    return 0
