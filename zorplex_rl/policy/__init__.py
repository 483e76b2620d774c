"""The model and how it acts: loading, rollouts, evaluation."""
