"""Simulate a run, read latencies off a real one, execute a real one again."""
