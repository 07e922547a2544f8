"""Partitions: which member of a group does which part.

Belongs here: who owns what by the members' names (pure), taking over and handing over.
Does not belong here: who is there; that is the group's. How a partition's lock is taken, held and given back;
that is the lock's.
"""
