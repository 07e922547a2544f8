"""Leader election: a lock's attempt in a loop, and what users are told of it."""
