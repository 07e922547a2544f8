"""Leader election: a lock's attempt in a loop, and the reports to users.

Belongs here: candidates, heirs, terms, callbacks, who leads.
Does not belong here: how a key is acquired, held and given back; that is the lock's.
"""
