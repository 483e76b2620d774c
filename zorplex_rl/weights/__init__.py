"""Transfer weights: pack a model into one buffer, publish it in a ring of buffers, detect torn reads.
Needs only torch."""
