"""The lock: one key, or several held as one.

Belongs here: what a reading of the key and its queue means for a waiter (pure), the lock's transactions, its
tickets, what can be asked of it.
Does not belong here: a loop, a watch or a clean-up of its own; those are in ``contend``, ``watch`` and
``cleanup``.
"""
