"""The read-write lock: one writer, or many readers.

Belongs here: who may enter (pure), its transactions, what can be asked of it.
Does not belong here: a loop, a watch or a clean-up of its own; those are in ``contend``, ``watch`` and
``cleanup``.
"""
