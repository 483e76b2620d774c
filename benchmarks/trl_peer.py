"""Train with TRL's ``GRPOTrainer``: the other side of ``time_to_accuracy.py`` and ``real_model.py``.

    python trl_peer.py '{"folder": "DIR", "threads": 2}'        writes DIR/metrics.jsonl

``rollout_func`` gets the prompts of a step, each already repeated for its group, and returns for
each a ``prompt_ids`` and a ``completion_ids`` list. ``completion_ids`` holds the whole conversation
behind the prompt; ``env_mask`` (1 where the policy wrote, 0 where a tool did) is the field that TRL
keeps for itself and multiplies into the loss mask. Any other field reaches the reward function:
``reward`` here. TRL uses the required ``logprobs`` only for the correction between vLLM and the
trainer, so ``None`` is returned and no time spent on them.

Fair to TRL: everything that costs time and serves only logs, checkpoints or memory is off (gradient
checkpointing is on by default), rollouts are batched with a key-value cache, one pass per batch, no
old or reference log-probabilities. Its own choices stay: group-normalised advantages, token-level
loss.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path

import torch
from turnwise import generate_turnwise

from zorplex_rl.config import LearnerConfig
from zorplex_rl.learning.learner import MAX_GRAD_NORM
from zorplex_rl.policy.evaluate import evaluate
from zorplex_rl.policy.load import load_policy, policy_folder
from zorplex_rl.policy.lora import ALPHA
from zorplex_rl.task.environment import Zorplex
from zorplex_rl.task.episode import Task
from zorplex_rl.task.rewards import score
from zorplex_rl.task.specs import run_tool

GROUP_SIZE = 8


@dataclass(frozen=True, slots=True)
class Job:
    """A training job."""

    folder: str
    """Where ``metrics.jsonl`` is written."""
    steps: int = 120
    """Training steps."""
    eval_tasks: int = 0
    """Held-out tasks on which the policy is evaluated after each step; 0 for none."""
    threads: int = 1
    """Torch threads."""
    seed: int = 0
    """Seed of the tasks, their tables and the random draws."""
    policy: str = "embedded"
    """Policy to start from, as ``--policy`` takes it."""
    kind: str = "compositional:hard"
    """Kind of task and its difficulty."""
    shots: int = 0
    """Worked examples before each question."""
    prompts: int = 8
    """Groups in a step."""
    max_tokens: int = 96
    """Most tokens of a response, results included."""
    micro_batch: int = 64
    """Episodes that the trainer's model takes at once: bounds the memory of a step."""
    learning_rate: float = 2e-4
    """Constant after the warm-up. This one is the best of five for the embedded policy (``LOG.md``)."""
    warmup_steps: int = LearnerConfig.warmup_steps
    """Steps of the warm-up."""
    lora_rank: int = 0
    """Rank of adapters on every linear layer, TRL's ``peft_config``; 0 trains all weights."""
    dtype: str = "float32"
    """Number type of the model."""


def train_with_trl(job: Job) -> None:
    """Run ``job`` and write a line into ``metrics.jsonl`` after every step."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    policy, environment = (
        load_policy(job.policy, of_transformers=True),
        Zorplex(job.seed, (job.kind,), job.shots),
    )
    policy.model.to(getattr(torch, job.dtype))
    # Evaluations are no part of the time, so they take the fast way.
    judged = load_policy(job.policy)
    held_out = [environment.task(index, "held_out") for index in range(job.eval_tasks)]
    tasks = [environment.task(index) for index in range(job.prompts * job.steps)]
    # TRL hands over prompts only, in the order of the dataset; tasks with the same question follow
    # one another in that order.
    tasks_of: dict[str, deque[Task]] = defaultdict(deque)
    for task in tasks:
        tasks_of[task.question].append(task)
    messages = [
        [{"role": role, "content": text} for role, text in turns_of(task)] for task in tasks
    ]

    def roll_out(prompts: list, trainer: GRPOTrainer) -> dict[str, list | None]:
        asked = []
        for start in range(0, len(prompts), GROUP_SIZE):
            (question,) = {prompt[-1]["content"] for prompt in prompts[start : start + GROUP_SIZE]}
            asked += [tasks_of[question].popleft()] * GROUP_SIZE
        episodes = generate_turnwise(policy, asked, run_tool, max_tokens=job.max_tokens)
        return {
            "prompt_ids": [episode.prompt_ids for episode in episodes],
            "completion_ids": [episode.token_ids for episode in episodes],
            "logprobs": None,
            "env_mask": [[int(sampled) for sampled in episode.sampled] for episode in episodes],
            "reward": [score(episode).reward for episode in episodes],
        }

    class Clock(TrainerCallback):
        """Note after each step the seconds since the first began, without those of evaluations."""

        def on_train_begin(self, args, state, control, **kwargs) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs) -> None:
            now, step = time.perf_counter(), state.global_step
            rows = [{"event": "step", "step": step, "seconds": now - self.started}]
            if job.eval_tasks:
                judged.model.load_state_dict(trained_weights(trainer.model))
                report, _ = evaluate(judged, job.kind, held_out, run_tool, seed=step)
                rows.append({"event": "eval", "step": step, "sampled_accuracy": report.accuracy})
            with (Path(job.folder) / "metrics.jsonl").open("a") as metrics:
                metrics.writelines(f"{json.dumps(row)}\n" for row in rows)
            self.started += time.perf_counter() - now

    config = GRPOConfig(
        output_dir=job.folder,
        use_cpu=True,
        bf16=False,
        seed=job.seed,
        max_steps=job.steps,
        per_device_train_batch_size=job.micro_batch,
        gradient_accumulation_steps=job.prompts * GROUP_SIZE // job.micro_batch,
        num_generations=GROUP_SIZE,
        max_completion_length=job.max_tokens,
        shuffle_dataset=False,
        learning_rate=job.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=job.warmup_steps,
        adam_beta2=0.95,
        max_grad_norm=MAX_GRAD_NORM,
        temperature=1.0,
        beta=0.0,
        loss_type="dapo",
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=lambda prompts, completions, reward, **kwargs: reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": messages}),
        processing_class=AutoTokenizer.from_pretrained(policy_folder(job.policy)),
        callbacks=[Clock()],
        rollout_func=roll_out,
        peft_config=adapters(job.lora_rank) if job.lora_rank else None,
    )
    trainer.train()


def adapters(rank: int):
    """Return peft's configuration of the adapters that ``--lora-rank`` trains: the same layers and scale."""
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=ALPHA, target_modules="all-linear", lora_dropout=0.0)


def trained_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's weights by their names without adapters, which are added to them."""
    if not hasattr(model, "merge_adapter"):
        return model.state_dict()
    model.merge_adapter()
    weights = {}
    for name, weight in model.get_base_model().state_dict().items():
        if "lora_" not in name:
            weights[name.replace(".base_layer", "")] = weight.clone()
    model.unmerge_adapter()
    return weights


def turns_of(task: Task) -> list[tuple[str, str]]:
    """Return role and text of each turn before the policy's."""
    shown = [
        turn for asked, told in task.examples for turn in (("user", asked), ("assistant", told))
    ]
    return [("system", task.system), *shown, ("user", task.question)]


if __name__ == "__main__":
    job = Job(**json.loads(sys.argv[1]))
    Path(job.folder).mkdir(parents=True)
    torch.set_num_threads(job.threads)
    train_with_trl(job)
