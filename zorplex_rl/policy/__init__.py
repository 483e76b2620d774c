"""The model and how it acts: loading, rollouts, evaluation, the embedded policy's warm start."""
