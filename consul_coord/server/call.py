"""One call of an endpoint: what it is given, and the two things it may answer with.

Rules
- An endpoint answers with a ``Reply``, or with a ``Read``: a question to the store that can be put again
  after a change.
- A ``Read`` tells with each answer the index and the marks whose news would make it worth asking again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consul_coord.server import gojson
from consul_coord.server.wire import JSON, Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.acl import Authorizer
    from consul_coord.server.params import Params, ReadOptions
    from consul_coord.server.state import ConsulState
    from consul_coord.server.store import Store
    from consul_coord.server.tables import Mark
    from consul_coord.server.wire import Request


@dataclass(slots=True)
class Call:
    """A request that reached its endpoint; ``tail`` is the decoded path after the endpoint's own."""

    state: ConsulState
    request: Request
    params: Params
    tail: str
    now: float
    pretty: bool
    options: ReadOptions
    authorizer: Authorizer

    @property
    def store(self) -> Store:
        """Return the data that this call may see."""
        return self.state.view(stale=self.options.stale)

    def json(self, value: object, *, status: int = 200) -> Reply:
        """Return a JSON reply."""
        return Reply(status, gojson.encode(value, pretty=self.pretty), JSON)


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer to a question: the reply, its index, and what to watch for the next.

    ``effective`` adds the header in which catalog, health and queries tell how consistent the answer is.
    ``local`` means that it is the agent's own, without headers about a leader. Without ``waits`` it is given
    at once, whatever index was named.
    """

    index: int
    reply: Reply
    marks: tuple[Mark, ...]
    effective: bool = False
    local: bool = False
    waits: bool = True


@dataclass(frozen=True, slots=True)
class Read:
    """A question that may block; ``look`` raises what an endpoint may raise."""

    look: Callable[[Store], Seen]


EMPTY = Reply()
NOT_FOUND = Reply(404)
