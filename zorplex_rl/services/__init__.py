"""Keep replicas of an actor alive, and route requests to them."""
