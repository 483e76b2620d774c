"""How parameters travel: one contiguous buffer, a ring of them, and a header that makes a torn read visible. Torch only."""
