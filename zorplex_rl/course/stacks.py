"""Say how sixteen open stacks train language models by reinforcement: seven axes, each cell with the source that it was read in.

    STACKS[0]                     this project; the other fifteen follow in the order of the alphabet
    STACKS[0].cells[FAULTS]       what happens there when a process dies: its kind, a line, the sources
    NOT_FOUND                     what a line says where no source that we read answers it; it is no claim of absence

All sources were read on ``READ_ON``. A stack changes from month to month: check the source before you build on a line of this map.
"""

from __future__ import annotations

from dataclasses import dataclass

from zorplex_rl import __version__

READ_ON = "2026-11-22"
NOT_FOUND = "not found in what we read"

ORCHESTRATION, STALENESS, PLACEMENT, GENERATOR, TRAINER, TRANSFER, FAULTS = range(7)
AXES = (
    "orchestration",
    "age of the data",
    "placement",
    "generator engine",
    "trainer",
    "weight transfer",
    "when a process dies",
)
QUESTIONS = (
    "What starts the processes and carries their messages?",
    "Does anything bound it, and how?",
    "Do generators and trainer share GPUs, or stand apart?",
    "What samples the episodes?",
    "What computes the update, and how is the model divided?",
    "How do new weights reach the generators?",
    "What goes on, and what starts again?",
)
"""What each of ``AXES`` asks."""

KINDS = {
    "holds back": "no group starts that could become too old",
    "drops old data": "what is too old is thrown away, or made again",
    "counts batches": "generation may be so many batches or steps ahead",
    "no bound found": "we found none, only proposals",
    "replaces both": "a generator or a trainer that dies is replaced in the run",
    "replaces generators": "a generator that dies is replaced in the run",
    "from a checkpoint": "the run starts again from what was saved",
    "apart": "generators and trainer have GPUs of their own",
    "either": "shared or apart, as you configure it",
    "a choice": "several, one of which you configure",
}
"""What a kind of cell means where its name alone does not say it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where something was read, and which version of it."""

    address: str
    version: str


@dataclass(frozen=True, slots=True)
class Cell:
    """What one stack does on one axis: ``kind`` groups it with others, ``read_in`` are numbers of the stack's sources, from 1."""

    kind: str
    said: str
    read_in: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """One stack, with a cell for each of ``AXES``."""

    name: str
    cells: tuple[Cell, ...]
    sources: tuple[Source, ...]


def cell(kind: str, said: str, *read_in: int) -> Cell:
    return Cell(kind, said, read_in)


def page(address: str, version: str) -> Source:
    return Source(f"https://{address}", version)


def file(repository: str, commit: str, path: str) -> Source:
    return Source(f"https://github.com/{repository}/blob/{commit}/{path}", f"commit {commit}")


def change(repository: str, number: int, said: str) -> Source:
    return Source(f"https://github.com/{repository}/pull/{number}", said)


OURS = Stack(
    "Zorplex RL (ours)",
    (
        cell("Monarch", "Monarch actors; routing, probing and replacing are services of our own above them", 1),
        cell(
            "holds back",
            "`--max-lag` versions; no group starts that could be too old; at 0 they take turns",
            1,
            2,
        ),
        cell("apart", "one process for each role, spread over the hosts; on one GPU they share it", 1),
        cell("its own", "a decode loop of ours in PyTorch, with `--slots` episodes at once", 1, 2),
        cell("FSDP2", "a learner of ours; FSDP2 over `--trainer-processes`", 1, 2),
        cell("a choice", "generators pull from a ring of versions: `shm`, `tcp`, `rdma` or `message`", 1, 2),
        cell(
            "replaces both",
            "a spare generator within about a second; the trainer from its checkpoint; a lost host's processes move",
            1,
        ),
    ),
    (
        Source("README.md of this repository", __version__),
        Source("zorplex_rl/config.py of this repository", __version__),
    ),
)

AREAL = Stack(
    "AReaL",
    (
        cell("its own or Ray", "a controller with schedulers for one machine, Ray and Slurm (`scheduler.type`)", 2),
        cell(
            "holds back",
            "`max_head_offpolicyness` versions; 0 is synchronous; decoupled PPO corrects the rest",
            1,
        ),
        cell("either", "apart, by an allocation of GPUs to roles; a small test run shares one GPU", 2),
        cell("a choice", "SGLang or vLLM", 2, 3),
        cell("a choice", "FSDP2, Megatron or Archon, its own PyTorch engine", 3),
        cell("a choice", "a collective group over NCCL, or files (`weight_update_mode=disk`)", 2),
        cell("from a checkpoint", "`recover.mode` on; the run restarts, a few times by itself", 4, 5),
    ),
    (
        page("inclusionai.github.io/AReaL/algorithms/async.html", "page as stored, read 2026-11-22"),
        file("areal-project/AReaL", "11a46c8", "docs/en/tutorial/quickstart.md"),
        page("inclusionai.github.io/AReaL/tutorial/archon.html", "page as stored, read 2026-11-22"),
        file("areal-project/AReaL", "3eb5891", "docs/en/reference/checkpointing.md"),
        page("github.com/inclusionAI/AReaL/issues/1279", "issue of 2026-04-27"),
    ),
)

MILES = Stack(
    "Miles",
    (
        cell("Ray", "Ray actors for trainer ranks and engines", 4),
        cell("drops old data", "`--max-weight-staleness`; older groups go back to be generated again", 1),
        cell("either", "apart by default; `--colocate` takes turns on the same GPUs", 4),
        cell("SGLang", "SGLang servers", 4),
        cell("a choice", "Megatron by default, FSDP2 or torchtitan (`--train-backend`)", 4),
        cell(
            "a choice",
            "`--update-weight-transfer-mode`: broadcast, peer to peer by RDMA, or changed bytes on a disk",
            2,
            4,
        ),
        cell(
            "replaces generators",
            "`--use-fault-tolerance`: hung engines are killed and restarted before the next update",
            3,
        ),
    ),
    (
        file("radixark/miles", "460e0af", "docs/user-guide/fully-async.md"),
        file("radixark/miles", "0b1fa4f", "docs/advanced/disaggregated-rollout.md"),
        file("radixark/miles", "9a80842", "docs/advanced/fault-tolerance.md"),
        file("radixark/miles", "0f3a20e", "docs/user-guide/training-backend.md"),
    ),
)

NEMO_RL = Stack(
    "NeMo RL",
    (
        cell("Ray", "Ray clusters and worker groups", 2, 3),
        cell("drops old data", "`max_trajectory_age_steps`; needs its importance-sampling correction", 1),
        cell("either", "shared GPUs, or apart; asynchronous GRPO with vLLM needs them apart", 1, 3),
        cell("a choice", "vLLM or Megatron; the nightly pages add SGLang and TensorRT-LLM", 2, 3),
        cell("a choice", "AutoModel (FSDP2 and other shardings of PyTorch) or Megatron", 2),
        cell("a choice", "NCCL broadcast, shard to shard over NCCL, NIXL; CUDA IPC where GPUs are shared", 2, 4),
        cell(
            "replaces generators",
            "training goes on when a generation shard dies, and nightly builds restart it; else the job, from a checkpoint",
            5,
            6,
            7,
        ),
    ),
    (
        page("docs.nvidia.com/nemo/rl/0.8.0/guides/async-grpo.html", "0.8.0"),
        page("docs.nvidia.com/nemo/rl/0.8.0/about/backends.html", "0.8.0"),
        file("NVIDIA-NeMo/RL", "1a6d973", "docs/design-docs/generation.md"),
        page(
            "docs.nvidia.com/nemo/rl/nightly/apidocs/nemo_rl/nemo_rl.weight_sync.collective_weight_synchronizer.html",
            "nightly",
        ),
        change("NVIDIA-NeMo/RL", 3591, "merged 2026-08-28"),
        page("docs.nvidia.com/nemo/rl/latest/guides/ft-launcher-guide.html", "latest"),
        change("NVIDIA-NeMo/RL", 3841, "read 2026-11-22"),
    ),
)

OPEN_INSTRUCT = Stack(
    "open-instruct",
    (
        cell("Ray", "Ray actors", 1),
        cell(
            "counts batches",
            "`--async_steps` steps of generation ahead, 1 by default; weights change in flight",
            1,
            2,
        ),
        cell("apart", "trainer and engines on their own GPUs; `--single_gpu_mode` is for debugging", 1),
        cell("vLLM", "vLLM engines", 1),
        cell("a choice", "FSDP of OLMo-core, or DeepSpeed", 1),
        cell("broadcast", "NCCL broadcast, in one batched call", 3),
        cell("from a checkpoint", "`checkpoint_state_dir` resumes the run; replacement " + NOT_FOUND, 4),
    ),
    (
        file("allenai/open-instruct", "0147878", "docs/algorithms/grpo.md"),
        change("allenai/open-instruct", 1013, "2025-09-15"),
        change("allenai/open-instruct", 1535, "2026-03-18"),
        file("allenai/open-instruct", "0063d12", "open_instruct/grpo_utils.py"),
    ),
)

OPENRLHF = Stack(
    "OpenRLHF",
    (
        cell("Ray", "Ray actors and placement groups", 1),
        cell(
            "counts batches",
            "`--train.async_queue_size` batches between generation and training, 1 by default",
            2,
        ),
        cell("either", "shared by taking turns; asynchronous runs give vLLM its own GPUs", 1, 2),
        cell("vLLM", "vLLM engines", 1),
        cell("DeepSpeed", "DeepSpeed ZeRO-3, tensor parallelism and ring attention", 1),
        cell("broadcast", "NCCL broadcast; generation waits, or pauses in flight with partial rollout", 1, 2),
        cell("from a checkpoint", "the run loads its last checkpoint; replacement " + NOT_FOUND, 3),
    ),
    (
        file("OpenRLHF/OpenRLHF-Docs", "21e778b", "docs/source/architecture.rst"),
        page(
            "github.com/OpenRLHF/OpenRLHF-Docs/blob/main/docs/source/async_training.rst",
            "two stored versions: commit 71677f3, and the later one with the flags of 0.10 (April 2026)",
        ),
        file("OpenRLHF/OpenRLHF-Docs", "0028db5", "docs/source/checkpoint.rst"),
    ),
)

PIPELINE_RL = Stack(
    "PipelineRL",
    (
        cell("its own", "a launcher of its own starts processes; data stream over files or Redis", 1),
        cell("holds back", "`finetune.max_lag` limits what generators start; weights change in flight", 1),
        cell("apart", "pools of GPUs by fractions for generators and trainer", 1),
        cell("vLLM", "vLLM servers", 1),
        cell("a choice", "Accelerate with DeepSpeed or FSDP; a preview with Fast-LLM", 1),
        cell("broadcast", "NCCL broadcast, announced over HTTP", 1),
        cell("from a checkpoint", "the same output folder resumes the run; replacement " + NOT_FOUND, 1),
    ),
    (file("ServiceNow/PipelineRL", "05a1366", "README.md"),),
)

PRIME_RL = Stack(
    "prime-rl",
    (
        cell(
            "its own", "three programs: trainer, orchestrator without a GPU, inference; messages over files or ZMQ", 1
        ),
        cell("counts batches", "`max_async_level` steps that generation may be ahead, 1 by default", 1, 2),
        cell("apart", "a single GPU is for debugging only", 3),
        cell("vLLM", "vLLM servers", 1),
        cell("FSDP2", "FSDP2 with expert and context parallelism", 1),
        cell("a choice", "files by default, NCCL, or a pull over NIXL", 1, 4),
        cell(
            "from a checkpoint",
            "inference stays up while the trainer restarts, and gets the weights again",
            5,
            6,
        ),
    ),
    (
        file("PrimeIntellect-ai/prime-rl", "f6bff7d", "docs/overview.md"),
        file("PrimeIntellect-ai/prime-rl", "858d428", "docs/algorithms.md"),
        file("PrimeIntellect-ai/prime-rl", "0afd6b8", "docs/faqs.md"),
        page("docs.primeintellect.ai/prime-rl/model-express", "page as stored, read 2026-11-22"),
        page("docs.primeintellect.ai/prime-rl/checkpointing", "page as stored, read 2026-11-22"),
        change("PrimeIntellect-ai/prime-rl", 1816, "merged 2026-02-17"),
    ),
)

ROLL = Stack(
    "ROLL",
    (
        cell("Ray", "Ray clusters of workers", 2),
        cell("counts batches", "`async_generation_ratio` batches ahead; 0 is synchronous", 1),
        cell("either", "`device_mapping` of the roles overlaps or does not", 1, 3),
        cell("a choice", "vLLM or SGLang", 2),
        cell("a choice", "DeepSpeed or Megatron", 2),
        cell("broadcast", "broadcast in a collective group; serialized tensors where GPUs are shared", 3),
        cell("from a checkpoint", "`resume_from_checkpoint`; replacement " + NOT_FOUND, 4),
    ),
    (
        page("alibaba.github.io/ROLL/docs/UserGuide/async_training", "page as stored, read 2026-11-22"),
        file("alibaba/ROLL", "05001fb", "README.md"),
        file("alibaba/ROLL", "005acba", "roll/third_party/megatron/model_update.py"),
        page("alibaba.github.io/ROLL/docs/简体中文/快速开始/config_guide_cn", "page as stored, read 2026-11-22"),
    ),
)

SKYRL = Stack(
    "SkyRL",
    (
        cell("Ray", "Ray placement groups", 3),
        cell("holds back", "`max_staleness_steps` sets how many groups may be under way", 1),
        cell("either", "`colocate_all`, or apart; fully asynchronous runs are apart", 1, 3),
        cell("vLLM", "vLLM engines", 2),
        cell("a choice", "FSDP or Megatron", 3),
        cell("broadcast", "NCCL broadcast; CUDA IPC where GPUs are shared", 2),
        cell(
            "from a checkpoint",
            "a dead engine ends the run; a resumed one skips the data that it has used",
            1,
            4,
        ),
    ),
    (
        file("NovaSky-AI/SkyRL", "f1ba9dd", "docs/content/docs/tutorials/fully_async.mdx"),
        file("NovaSky-AI/SkyRL", "0e5c55d", "docs/content/docs/getting-started/inference_architecture.mdx"),
        file("NovaSky-AI/SkyRL", "4e097d7", "docs/content/docs/configuration/placement.mdx"),
        change("NovaSky-AI/SkyRL", 1691, "merged 2026-05-19"),
    ),
)

SLIME = Stack(
    "slime",
    (
        cell("Ray", "Ray actors and placement groups", 1),
        cell("no bound found", "synchronous or asynchronous; a bound is proposed (`--max-policy-version-lag`)", 4, 5),
        cell("either", "apart, or `--colocate`", 1),
        cell("SGLang", "SGLang servers behind a router", 1),
        cell("Megatron", "Megatron", 1),
        cell("a choice", "NCCL broadcast; only changes, over NCCL or a disk; CUDA IPC where GPUs are shared", 3),
        cell(
            "replaces generators",
            "`--use-fault-tolerance`: dead servers restart after the round; notes of v0.4.0 name a recovery of Megatron too",
            2,
            6,
        ),
    ),
    (
        file("THUDM/slime", "4da70cf", "docs/en/get_started/usage.md"),
        file("THUDM/slime", "b598bf9", "docs/en/advanced/fault-tolerance.md"),
        file("THUDM/slime", "0a664bc", "docs/en/advanced/delta-weight-sync.md"),
        page("github.com/THUDM/slime/issues/1800", "issue of 2026-04-03"),
        change("THUDM/slime", 2278, "open, of 2026-08-17"),
        page("github.com/THUDM/slime/releases/tag/v0.4.0", "v0.4.0"),
    ),
)

TORCHFORGE = Stack(
    "torchforge",
    (
        cell("Monarch", "Monarch actors, grouped into services with replicas", 1),
        cell(
            "drops old data",
            "`max_policy_age` of the replay buffer, 1 by default; older episodes are evicted",
            2,
        ),
        cell("apart", "each service has processes and GPUs of its own", 1, 2),
        cell("vLLM", "vLLM inside a service", 1),
        cell("torchtitan", "torchtitan: FSDP and other shardings", 1),
        cell("store with RDMA", "a key-value store, TorchStore, with RDMA; it reshards on the way", 1),
        cell(
            "replaces generators",
            "a service routes around a failed replica and restarts it; other state is not covered",
            3,
            4,
        ),
    ),
    (
        file("meta-pytorch/torchforge", "79c6b50", "docs/source/architecture.md"),
        file("meta-pytorch/torchforge", "80e03e0", "apps/grpo/qwen3_1_7b.yaml"),
        file("meta-pytorch/torchforge", "10863aa", "docs/Tutorials/2_Forge_Internals.MD"),
        page("github.com/meta-pytorch/torchforge/issues/619", "issue of 2025-12-03"),
    ),
)

TORCHTITAN = Stack(
    "torchtitan RL",
    (
        cell("Monarch", "a controller on Monarch; an experiment within torchtitan", 3),
        cell(
            "holds back",
            "a window of groups in order (`target_offpolicy_steps`, `window_fraction`) bounds the age",
            1,
        ),
        cell("apart", "trainer and generators on their own GPUs", 4),
        cell("vLLM", "vLLM that runs torchtitan's definition of the model", 3),
        cell("torchtitan", "torchtitan: FSDP and tensor parallelism", 3),
        cell("store with RDMA", "TorchStore with five transports, RDMA among them (`--weight-sync-transport`)", 2),
        cell("from a checkpoint", "checkpoint and resume; replacement " + NOT_FOUND, 5),
    ),
    (
        file("pytorch/torchtitan", "0801315", "torchtitan/experiments/rl/docs/windowed_fifo.md"),
        file("pytorch/torchtitan", "ce2f31f", "torchtitan/experiments/rl/docs/weight_sync_transport.md"),
        file("pytorch/torchtitan", "01cf7b1", "torchtitan/experiments/rl/README.md"),
        change("pytorch/torchtitan", 2472, "of 2026-03-03"),
        change("pytorch/torchtitan", 3751, "merged 2026-06-23"),
    ),
)

TRL = Stack(
    "TRL",
    (
        cell("its own", "a trainer under `accelerate`, a process for rollouts, vLLM servers over HTTP", 1, 3),
        cell("holds back", "`max_staleness` weight updates, 4 by default; older samples are discarded", 2, 4),
        cell("either", "asynchronous GRPO needs GPUs of its own for vLLM; the synchronous trainer can share", 1),
        cell("vLLM", "a vLLM server that you start", 1),
        cell("FSDP2", "FSDP2; no DeepSpeed for asynchronous GRPO", 1),
        cell(
            "broadcast", "NCCL through vLLM's weight transfer, every `weight_sync_steps`; adapters also by files", 1, 6
        ),
        cell(
            NOT_FOUND, "recovery " + NOT_FOUND + "; an open change is about a failed generation that ends the worker", 5
        ),
    ),
    (
        file("huggingface/trl", "00c802b", "docs/source/async_grpo_trainer.md"),
        file("huggingface/trl", "4b4d33e", "trl/experimental/async_grpo/async_grpo_config.py"),
        file("huggingface/trl", "2046398", "trl/experimental/async_grpo/async_grpo_trainer.py"),
        page("github.com/huggingface/trl/releases/tag/v1.18.0", "v1.18.0"),
        change("huggingface/trl", 7176, "open, of 2026-09-10"),
        page("huggingface.co/blog/asyncgrpo-lora-hfjobs", "of 2026-09-10"),
    ),
)

TUNIX = Stack(
    "Tunix",
    (
        cell("its own", "JAX; an orchestrator of its own", 1, 4),
        cell("counts batches", "`off_policy_steps` batches of prompts ahead, 0 by default", 1),
        cell("either", "one mesh of devices for all, or one for each role", 4),
        cell("a choice", "its own sampler, vLLM or SGLang for JAX", 3),
        cell("JAX", "Flax on JAX meshes: FSDP, tensor parallelism", 4),
        cell("in memory", "arrays are resharded from mesh to mesh; a transport named Raiden is being added", 4, 5),
        cell("from a checkpoint", "Orbax checkpoints; an environment that times out is not tried again", 2),
    ),
    (
        file("google/tunix", "3eda4b6", "docs/agentic_rl_design.md"),
        file("google/tunix", "898e4b1", "docs/reliability.md"),
        file("google/tunix", "b2be968", "docs/rollout.md"),
        file("google/tunix", "5ade2bd", "docs/design.md"),
        change("google/tunix", 2148, "of September 2026"),
    ),
)

VERL = Stack(
    "verl",
    (
        cell("Ray", "Ray worker groups under one controller", 2),
        cell("drops old data", "`max_off_policy_threshold` model versions, 8 by default: drop, or wait", 1),
        cell("either", "`trainer_mode`: synchronous, shared and asynchronous, or separate and asynchronous", 1),
        cell("a choice", "vLLM or SGLang", 1, 2),
        cell("a choice", "FSDP, FSDP2 or Megatron", 2),
        cell("a choice", "checkpoint engines over NCCL, NIXL or Mooncake; direct where GPUs are shared", 1),
        cell(
            "from a checkpoint",
            "prompts under way are issued again; replacing a worker is proposed",
            1,
            3,
            4,
        ),
    ),
    (
        file("verl-project/verl", "1b86216", "docs/advance/v1_async_trainer.md"),
        page("verl.readthedocs.io/en/latest/advance/fully_async.html", "of 2026-05-09"),
        page("github.com/volcengine/verl/issues/1314", "issue of 2025-05-01"),
        change("verl-project/verl", 7910, "open, of 2026-09-17"),
    ),
)

STACKS = (
    OURS,
    AREAL,
    MILES,
    NEMO_RL,
    OPEN_INSTRUCT,
    OPENRLHF,
    PIPELINE_RL,
    PRIME_RL,
    ROLL,
    SKYRL,
    SLIME,
    TORCHFORGE,
    TORCHTITAN,
    TRL,
    TUNIX,
    VERL,
)
"""Ours first, then the others in the order of the alphabet."""


def groups(axis: int) -> dict[str, list[Stack]]:
    """Return the stacks by what they do on an axis, the largest group first."""
    found: dict[str, list[Stack]] = {}
    for stack in STACKS:
        found.setdefault(stack.cells[axis].kind, []).append(stack)
    return dict(sorted(found.items(), key=lambda group: -len(group[1])))
