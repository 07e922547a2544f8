"""Jobs that run once in each slot, whoever tries: a lock, and a record of the last run.

Belongs here: what a record means for a caller (pure), the transaction that writes it, what can be asked.
Does not belong here: a loop, a watch or a clean-up of its own; the lock has those.
"""
