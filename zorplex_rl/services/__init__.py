"""Replicas that are kept alive, and requests that find them."""
