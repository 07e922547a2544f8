"""The semaphore: a number of slots under one prefix.

Belongs here: its record and contenders, what a listing means for a waiter (pure), its transactions, what
can be asked of it.
Does not belong here: a loop, a watch or a clean-up of its own; those are in ``contend``, ``watch`` and
``cleanup``.
"""
