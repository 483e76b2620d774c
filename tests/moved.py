"""The notebooks that keep each rule of the finished course, by file name without ``.py``. Add a notebook when it has moved; take none out."""

PREDICTIONS: tuple[str, ...] = (
    "01_actors",
    "02_interactive_devx",
    "03_fault_tolerance",
    "04_distributed_tensors",
    "05_rl_intro",
    "06_services",
    "07_rdma_weight_sync",
    "07b_resharding",
    "08_rl_e2e",
    "09_staleness",
    "10_scaling_out",
)
"""Every result is revealed by a prediction's answer, and the end says how many there are."""

EXERCISES: tuple[str, ...] = (
    "01_actors",
    "02_interactive_devx",
    "03_fault_tolerance",
    "04_distributed_tensors",
    "05_rl_intro",
    "06_services",
    "07_rdma_weight_sync",
    "07b_resharding",
    "08_rl_e2e",
    "09_staleness",
    "10_scaling_out",
)
"""Every exercise has a level, minutes and two hints; all three levels are there."""

SYNTAX_ERRORS: tuple[str, ...] = (
    "01_actors",
    "02_interactive_devx",
    "03_fault_tolerance",
    "04_distributed_tensors",
    "05_rl_intro",
    "06_services",
    "07_rdma_weight_sync",
    "07b_resharding",
    "08_rl_e2e",
    "09_staleness",
    "10_scaling_out",
)
"""Every ``exercise.feedback`` gets its stub by a ``lambda``: it survives a syntax error in the stub's cell."""

MINUTES: tuple[str, ...] = (
    "01_actors",
    "02_interactive_devx",
    "03_fault_tolerance",
    "04_distributed_tensors",
    "05_rl_intro",
    "06_services",
    "07_rdma_weight_sync",
    "07b_resharding",
    "08_rl_e2e",
    "09_staleness",
    "10_scaling_out",
)
"""The header agrees with ``workshop/minutes.py`` within 20 %, and 45 minutes are enough."""

SENTENCES: tuple[str, ...] = (
    "01_actors",
    "02_interactive_devx",
    "03_fault_tolerance",
    "04_distributed_tensors",
    "05_rl_intro",
    "06_services",
    "07_rdma_weight_sync",
    "07b_resharding",
    "08_rl_e2e",
    "09_staleness",
    "10_scaling_out",
)
"""No sentence has more than 30 words."""

BOLD_TERMS: tuple[str, ...] = (
    "01_actors",
    "02_interactive_devx",
    "03_fault_tolerance",
    "04_distributed_tensors",
    "05_rl_intro",
    "06_services",
    "07_rdma_weight_sync",
    "07b_resharding",
    "08_rl_e2e",
    "09_staleness",
    "10_scaling_out",
)
"""Bold marks a term at its first use, and nothing else; the glossary explains every one."""
