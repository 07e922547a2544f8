"""Groups: who is there.

Belongs here: how members are kept in Consul, what a reading of them means (pure), joining and staying, what
users are told of the others.
Does not belong here: how a key is taken, held and given back; that is the lock's. Who does which part: that
is in ``partition``.
"""
