"""Simulate a run, compute lower bounds on its wall time, and read latencies off a real one.
Standard library only."""
