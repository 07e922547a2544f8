"""Groups: who is there.

Belongs here: how members are kept in Consul, the meaning of a reading of them (pure), joining and staying,
and the reports to users about the others. Does not belong here: how a key is taken, held and given back; that
is the lock's. ``partition`` decides which member does which part.
"""
