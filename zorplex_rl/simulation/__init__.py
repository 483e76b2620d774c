"""Simulate a run, bound its wall time, read latencies off a real one. Standard library only."""
