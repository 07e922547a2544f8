"""The lock: its judgement of a reading, its transactions, what can be asked of it; locks of several keys."""
