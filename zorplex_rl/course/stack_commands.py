"""Keep one job in five stacks: the command that starts it, and what each stack calls the same setting.

The job: GRPO on a policy that uses tools, two generators apart from the trainer, data at most four versions old where the stack counts versions.
Flags are those of each stack's documentation; the values of the job are ours, and what names models, data and batch sizes is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from zorplex_rl import __version__
from zorplex_rl.course.stacks import NOT_FOUND, Source, file, page


@dataclass(frozen=True, slots=True)
class Launch:
    """How one stack is told to do the job."""

    stack: str
    command: str
    note: str
    sources: tuple[Source, ...]
    """The command's own first, then those of the names in ``KNOBS``."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting, and its name in each stack of ``LAUNCHES``."""

    what: str
    names: tuple[str, ...]


LAUNCHES = (
    Launch(
        "Zorplex RL",
        """
zorplex-rl train --hosts slurm:2 --tls keys/controller \\
  --generators 2 --max-lag 4 --update in-flight \\
  --loss decoupled_ppo --tool-latency 0.05
""",
        "Slurm nodes are asked for by the command itself; the task with tools is the course's own.",
        (
            Source("README.md of this repository", __version__),
            Source("zorplex_rl/config.py of this repository", __version__),
        ),
    ),
    Launch(
        "OpenRLHF",
        """
ray job submit --address="http://127.0.0.1:8265" -- \\
  python3 -m openrlhf.cli.train_ppo_ray \\
  --train.async_enable --train.async_queue_size 4 \\
  --train.agent_func_path examples/python/agent_func.py \\
  --actor.num_nodes 1 --actor.num_gpus_per_node 4 \\
  --vllm.num_engines 2 --vllm.tensor_parallel_size 2 \\
  --vllm.sync_backend nccl --ds.zero_stage 3 \\
  --rollout.n_samples_per_prompt 8 \\
  --algo.advantage.estimator group_norm \\
  --algo.advantage.is_correction_enable
""",
        "A Ray cluster is running already. Before 0.10 the flags had underscores: `--async_train`, `--async_queue_size`.",
        (
            page(
                "github.com/OpenRLHF/OpenRLHF-Docs/blob/main/docs/source/async_training.rst",
                "flags of 0.10, April 2026",
            ),
            page("github.com/OpenRLHF/OpenRLHF/blob/main/README.md", "with the news of 0.10, April 2026"),
            file("OpenRLHF/OpenRLHF-Docs", "04c31a1", "docs/source/async_rl.rst"),
        ),
    ),
    Launch(
        "TRL",
        """
CUDA_VISIBLE_DEVICES=0 VLLM_SERVER_DEV_MODE=1 \\
  vllm serve Qwen/Qwen3-4B --max-model-len 4096 \\
  --logprobs-mode processed_logprobs \\
  --weight-transfer-config '{"backend":"nccl"}'

CUDA_VISIBLE_DEVICES=1 accelerate launch train_async_grpo.py
""",
        "The script is yours: an `AsyncGRPOTrainer` with `tools=…`, and `max_staleness=4` in its `AsyncGRPOConfig`.",
        (
            file("huggingface/trl", "00c802b", "docs/source/async_grpo_trainer.md"),
            file("huggingface/trl", "4b4d33e", "trl/experimental/async_grpo/async_grpo_config.py"),
        ),
    ),
    Launch(
        "verl",
        """
python -m verl.trainer.main_ppo \\
  trainer.use_v1=True trainer.v1.trainer_mode=separate_async \\
  trainer.nnodes=2 trainer.n_gpus_per_node=8 \\
  actor_rollout_ref.rollout.nnodes=2 \\
  actor_rollout_ref.rollout.n_gpus_per_node=8 \\
  actor_rollout_ref.rollout.checkpoint_engine.backend=nccl \\
  data.train_batch_size=64 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
  trainer.v1.separate_async.parameter_sync_step=4 \\
  trainer.v1.sampler.max_off_policy_threshold=4
""",
        "Tools come in by an agent loop, set in the configuration of the rollout.",
        (
            Source(
                "https://github.com/verl-project/verl/blob/1b86216/docs/advance/v1_async_trainer.md",
                "commit 1b86216, last updated 2026-09-16",
            ),
            page("verl.readthedocs.io/en/latest/advance/fully_async.html", "last updated 2026-05-09"),
        ),
    ),
    Launch(
        "torchforge",
        """
python -m apps.grpo.main --config apps/grpo/qwen3_1_7b.yaml
""",
        "The settings stand in the YAML file: `off_by_n: 4`, `services.policy.num_replicas: 2`. An example with tools: "
        + NOT_FOUND
        + ".",
        (
            Source(
                "https://github.com/meta-pytorch/torchforge/blob/7401356/apps/grpo/README.md",
                "commit 7401356, last updated 2025-12-05",
            ),
            file("meta-pytorch/torchforge", "80e03e0", "apps/grpo/qwen3_1_7b.yaml"),
        ),
    ),
)

COUNTED_IN = ("versions", "batches", "weight updates", "versions", "versions")
"""In what each stack of ``LAUNCHES`` counts the age of data; a weight update makes a version."""

KNOBS = (
    Knob(
        "how old data may be",
        (
            "`--max-lag`",
            "`--train.async_queue_size`",
            "`max_staleness`",
            "`trainer.v1.sampler.` `max_off_policy_threshold`",
            "`replay_buffer.max_policy_age`",
        ),
    ),
    Knob("it counts", COUNTED_IN),
    Knob(
        "generators",
        (
            "`--generators`",
            "`--vllm.num_engines`",
            "the vLLM servers that you start",
            "`actor_rollout_ref.rollout.` `nnodes` × `n_gpus_per_node`",
            "`services.policy.num_replicas`",
        ),
    ),
    Knob(
        "episodes at once",
        (
            "`--slots`, for each generator",
            "`OPENRLHF_ASYNC_NUM_TASKS`, for each engine, in pages from before 0.10",
            "`max_inflight_tasks`, for all",
            NOT_FOUND,
            "`rollout_threads`, in groups",
        ),
    ),
    Knob(
        "how weights travel",
        (
            "`--transport`",
            "`--vllm.sync_backend`",
            "`--weight-transfer-config` of vLLM",
            "`actor_rollout_ref.rollout.` `checkpoint_engine.backend`",
            "TorchStore; a choice was " + NOT_FOUND,
        ),
    ),
    Knob(
        "correction of old data",
        (
            "`--loss tis`, `--loss decoupled_ppo`",
            "`--algo.advantage.` `is_correction_enable`",
            "`epsilon`, `epsilon_high`: a clip against the generator's probabilities",
            "`algorithm.rollout_correction.*`",
            NOT_FOUND,
        ),
    ),
)
