"""Hand a leadership over on request: ``transfer`` asks, and ``elect`` listens.

A request is a key beside the queue, ``KEY/.wait/handover``: the leader's session, a space, the heir's.

Rules
- A request counts only while the session that it names leads, so an old one means nothing.
- Only the leader hands over, after its command has ended. The asking process waits for that, and withdraws
  the request if it does not come.
- Leaders that are no ``consul-coord elect`` don't listen.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consul_coord import ConsulCoordError
from consul_coord.cli.inbox import Handover
from consul_coord.recipes.contend import queue as waitqueue

if TYPE_CHECKING:
    from collections.abc import Generator

    from consul_coord import Client, KVPair
    from consul_coord.cli.inbox import Inbox


def request_key(key: str) -> str:
    """Return the key of a request."""
    return f"{waitqueue.directory(key)}handover"


def request(leader: str, heir: str) -> bytes:
    """Return the value of a request."""
    return f"{leader} {heir}".encode()


def heir_of(pair: KVPair | None, leader: str) -> str | None:
    """Return the session that a leader is asked to hand over to, if it is."""
    asked, _, heir = ("" if pair is None else pair.value.decode(errors="replace")).partition(" ")
    return heir if heir and asked == leader else None


@contextmanager
def listening(client: Client, key: str, leader: str, inbox: Inbox) -> Generator[None]:
    """Tell the inbox meanwhile when this leader is asked to hand over."""
    watch = client.kv.watch(request_key(key))

    def follow() -> None:
        try:
            for seen in watch:
                heir = heir_of(seen.value, leader)
                if heir is not None and seen.value is not None:
                    # Taken away first: else the same leader would hand over again in its next term. At any
                    # index: that is repeated until it is answered, and a newer request is met as well.
                    client.kv.delete(seen.value.key)
                    inbox.put(Handover(heir))
        except ConsulCoordError:
            pass  # the client closes, or the token has no permission there: then nobody can ask

    follower = threading.Thread(target=follow, name="consul-coord-handover", daemon=True)
    follower.start()
    try:
        yield
    finally:
        watch.close()
        follower.join()
