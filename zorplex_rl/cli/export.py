"""``zorplex-rl export``: write a run's policy as a folder for plain transformers.

Many models come with sampling settings, such as a penalty for repeated words, which ``generate``
applies even when greedy. The run sampled without any, so they are left out. The tools are not part
of the model: a program that generates has to stop at a call, run the tool and add its result.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from zorplex_rl.errors import ConfigError
from zorplex_rl.run.folder import RunFolder, read_config, step_of, verify

if TYPE_CHECKING:
    from zorplex_rl.policy.load import Policy


@dataclass(frozen=True)
class Export:
    """Write the policy of a run as a folder that plain transformers loads, without this package."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    to: Path
    """The folder to write; there must be none yet."""
    step: int | None = None
    """Write the policy of the checkpoint of this step instead of the finished one."""
    adapter: bool = False
    """Write only the adapter of a run with a --lora-rank, for the library PEFT and for --policy."""

    def run(self) -> int:
        from zorplex_rl.policy.load import save_model

        if self.to.exists():
            raise ConfigError(f"--to {str(self.to)!r} exists already; choose another folder")
        if self.adapter:
            return self.write_adapter()
        policy = policy_of(self.folder, self.step)
        save_model(policy.model, policy.tokenizer, self.to)
        ends = policy.eos_ids
        pad = policy.tokenizer.pad_token_id
        settings = {
            "eos_token_id": list(ends),
            "pad_token_id": ends[0] if pad is None else pad,
            "do_sample": False,
        }
        (self.to / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        print(f"wrote {self.to}; load it with AutoModelForCausalLM.from_pretrained")
        return 0

    def write_adapter(self) -> int:
        from zorplex_rl.policy.load import policy_folder
        from zorplex_rl.policy.lora import save_adapter
        from zorplex_rl.policy.model_folder import base_name, digest_of

        config = read_config(self.folder)
        if not config.lora_rank:
            raise ConfigError(
                f"the run in {str(self.folder)!r} has no adapter; it trained all weights"
            )
        step = self.step
        checkpoints = RunFolder(self.folder).checkpoints()
        if step is None and checkpoints:
            step = step_of(checkpoints[-1])
        policy = policy_of_checkpoint(self.folder, step)
        base = base_name(config.policy)
        save_adapter(policy.model, base, digest_of(policy_folder(config.policy)), self.to)
        advice = f"load it with peft's PeftModel.from_pretrained onto {base}, or with --policy"
        print(f"wrote {self.to}; {advice}")
        return 0


def policy_of(run: Path, step: int | None) -> "Policy":
    """Return the run's policy, or that of the checkpoint of ``step``, in its number type."""
    folder = RunFolder(run)
    if step is None and folder.policy.is_dir():
        from zorplex_rl.policy.load import load_policy

        settings = json.loads((folder.policy / "config.json").read_text())
        return load_policy(str(folder.policy), dtype=settings["dtype"])
    return policy_of_checkpoint(run, step)


def policy_of_checkpoint(run: Path, step: int | None) -> "Policy":
    """Return the policy of the run's checkpoint of ``step``, in its number type."""
    from zorplex_rl.learning.checkpoint import load_learner
    from zorplex_rl.learning.learner import Learner
    from zorplex_rl.policy.load import load_policy_of

    config = read_config(run)
    checkpoints = {step_of(path): path for path in RunFolder(run).checkpoints()}
    if step not in checkpoints:
        what = "finished policy" if step is None else f"checkpoint of step {step}"
        problem = f"the run in {str(run)!r} has no {what}"
        raise ConfigError(f"{problem}; its checkpoints are of step {list(checkpoints)}")
    verify(checkpoints[step])
    policy = load_policy_of(config)
    learner = Learner(policy, config.learner, config.steps)
    load_learner(learner, checkpoints[step] / "trainer")
    return learner.policy
