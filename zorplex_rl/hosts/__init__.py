"""Other machines of a run: beside the services, which they hand processes."""
