"""Measure a run, simulate another one, and compute lower bounds on its wall time. Standard library only."""
