"""Sessions: how long one may be relied on, how it is kept alive, where sessions come from.

Belongs here: lease arithmetic (pure), creating, renewing and ending sessions, their names, handing one over.
Does not belong here: keys, holds, waiting for anything but a session. This is the lowest room: it imports no
other one.
"""
