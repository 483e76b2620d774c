"""A learner of one batch, sharded over a few processes without Monarch. Not a test: the
processes import it."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.checkpoint import load_learner, save_learner
from zorplex_rl.learning.learner import Learner
from zorplex_rl.policy.load import load_policy

Case = tuple[LearnerConfig, str]
"""The learner's settings, and the number type of its model."""
DECAY_STEPS = 100


def train(learner, batch) -> list[dict[str, float]]:
    """Take two steps; in bfloat16 one, after which a weight that was rounded the other way makes
    another gradient."""
    steps = 2 if next(learner.policy.model.parameters()).dtype == torch.float32 else 1
    return [learner.step(*batch) for _ in range(steps)]


def one_process(case: Case) -> Learner:
    config, dtype = case
    return Learner(load_policy(dtype=dtype), config, DECAY_STEPS)


def train_sharded(folder: Path, ranks: int, case: Case, batch) -> None:
    """Train a learner of ``case`` on ``ranks`` processes, and write to ``folder`` what it was like,
    as each rank saw it.

    It also writes a checkpoint ``folder/saved_by_group``, and takes a step from the checkpoint
    ``folder/saved_by_one``.
    """
    # All ranks are forked from one process, which has imported what they need.
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [__name__, "zorplex_rl.learning.sharded_learner", "torch._dynamo"]
    )
    torch.multiprocessing.start_processes(
        _rank, (folder, ranks, case, batch), ranks, start_method="forkserver"
    )


def _rank(rank: int, folder: Path, ranks: int, case: Case, batch) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from zorplex_rl.learning.sharded_learner import ShardedLearner

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), ranks), rank=rank, world_size=ranks
    )
    config, dtype = case
    learner = ShardedLearner(
        load_policy(dtype=dtype), init_device_mesh("cpu", (ranks,)), config, DECAY_STEPS
    )
    own = sum(p.to_local().numel() for p in learner.policy.model.parameters())
    found = {"own_parameters": own, "metrics": train(learner, batch), "state": learner.state_dict()}
    save_learner(learner, folder / "saved_by_group")
    load_learner(learner, folder / "saved_by_one")
    found["metrics_after_load"] = learner.step(*batch)
    found["weights_after_load"] = learner.whole_weights()
    torch.save(found, folder / f"{rank}")
    dist.destroy_process_group()
