"""``zorplex-rl export``: write a run's policy as a folder for plain transformers.

    model.safetensors, config.json       as in the run, in its number type
    tokenizer*, chat_template.jinja      as in the run
    generation_config.json               made anew: what ends a text, and nothing else

Many models come with sampling settings, such as a penalty for repeated words, which ``generate``
applies even when greedy. The run sampled without any, so they are left out. The tools are not part
of the model: whoever generates has to stop at a call, run the tool and add its result.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from zorplex_rl.cli.flags import Command
from zorplex_rl.config import Config
from zorplex_rl.errors import CheckpointError, ConfigError, PolicyError
from zorplex_rl.run.folder import RunFolder, read_config, step_of

if TYPE_CHECKING:
    from zorplex_rl.policy.load import Policy


@dataclass(frozen=True)
class Export(Command):
    """Write the policy of a run as a folder that plain transformers loads, without this package."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    to: Path
    """The folder to write; new, or empty."""
    step: int | None = None
    """Write the policy of the checkpoint of this step instead of the finished one."""


def export(command: Export) -> int:
    """Write the folder. Returns the exit code, or raises ConfigError and leaves nothing behind."""
    to, folder = command.to, RunFolder(command.run)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {str(to)!r} exists already and is not empty; choose another folder")
    config = read_config(command.run, "the run")
    if to.resolve().is_relative_to(command.run.resolve()):
        raise ConfigError(f"--to {str(to)!r} is inside the run {str(command.run)!r}; choose a folder outside of it")
    if command.step is None and not folder.policy.is_dir():
        steps = ", ".join(str(step_of(path)) for path in folder.checkpoints())
        what = f"give the step of a checkpoint with --step: {steps}" if steps else "let it finish first"
        raise ConfigError(f"the run in {str(command.run)!r} has no finished policy; {what}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}-") as beside:
            unfinished = Path(beside) / "policy"
            try:
                policy = _of_checkpoint(folder, command.step, config) if command.step is not None else _finished(folder)
            except (PolicyError, KeyError) as error:
                steps = ", ".join(str(step_of(path)) for path in folder.checkpoints())
                reason = str(error).partition("; ")[0]
                raise ConfigError(
                    f"the policy in {str(folder.path)!r} is broken: {reason}; write that of a checkpoint, with --step {steps or '…'}"
                ) from error
            parameters = _write(policy, unfinished)
            if to.exists():
                to.rmdir()
            unfinished.rename(to)
    except OSError as error:
        raise ConfigError(f"--to {str(to)!r} cannot be written ({error.strerror}); choose another folder") from error
    print(f"wrote {to}: {parameters:,} parameters; transformers loads it with AutoModelForCausalLM.from_pretrained")
    return 0


def _finished(folder: RunFolder) -> "Policy":
    """Return the run's policy, in the number type in which it was written."""
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.policy.model_folder import check_policy

    source = check_policy(str(folder.policy))
    return load_policy(source, dtype=json.loads((Path(source) / "config.json").read_text())["dtype"])


def _of_checkpoint(folder: RunFolder, step: int, config: Config) -> "Policy":
    """Return the policy of the checkpoint of ``step``."""
    from zorplex_rl.learning.checkpoint import load_learner
    from zorplex_rl.learning.learner import Learner
    from zorplex_rl.policy.load import load_policy
    from zorplex_rl.run.folder import verify

    found = {step_of(path): path for path in folder.checkpoints()}
    if step not in found:
        there = f"those there are of step {', '.join(map(str, found))}" if found else "there are none"
        raise ConfigError(f"--step is {step}, but the run in {str(folder.path)!r} has no such checkpoint; {there}")
    try:
        verify(found[step])
        learner = Learner(load_policy(config.policy, dtype=config.dtype), config.learner, config.steps)
        load_learner(learner, found[step] / "trainer")
    except CheckpointError as error:
        raise ConfigError(
            f"the checkpoint of step {step} in {str(folder.path)!r} is broken: {error}; give another --step"
        ) from error
    return learner.policy


def _write(policy: "Policy", folder: Path) -> int:
    """Write ``policy``, and what ends a text, to ``folder``. Returns the number of parameters."""
    from zorplex_rl.policy.load import save_model

    save_model(policy.model, policy.tokenizer, folder)
    ends, pad = policy.eos_ids, policy.tokenizer.pad_token_id
    settings = {"eos_token_id": list(ends), "pad_token_id": ends[0] if pad is None else pad, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return policy.model.num_parameters()
