"""Leader election: a lock's attempt in a loop, and what users are told of it.

Belongs here: candidates, heirs, terms, callbacks, who leads.
Does not belong here: how a key is acquired, held and given back; that is the lock's.
"""
