"""The read-write lock: who may enter, its transactions, what can be asked of it."""
