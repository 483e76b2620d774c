"""Weights between meshes that cut them differently: who holds what, the least that has to move, and moving it."""
