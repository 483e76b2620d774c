"""The model and how it acts: loading, the warm start that made the embedded policy, rollouts, evaluation."""
