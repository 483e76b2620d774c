"""The model and how it acts: loading, rollouts, evaluation, and the warm start that made the
embedded policy."""
