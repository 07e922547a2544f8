"""The floor: the two transactions of a lock, prepared, on one plain socket; and the same two over httpx.

Rules
- It sends what ``consul_coord`` sends, byte for byte but for padding: the index in the release is filled into
  a field of fixed width, so that nothing else of the request depends on it. A test compares the two.
- Of a reply it reads what it must: where it ends, and the index of the grant.
- Anything but a granted lock and an accepted release ends the run.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bench.contenders.pairs import timed
from consul_coord import LOCK_FLAGS, __version__
from consul_coord.base_client import own_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    import httpx

    from bench.bed import Bed
    from bench.contenders.pairs import Pairs

_WIDTH = 20
_BLANK = 2**64 - 1
"""Stands for the index until that is known."""
_READ_SIZE = 64 * 1024
_OK = b"HTTP/1.1 200"
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"\r\nContent-Length: "
_INDEX = re.compile(rb'"ModifyIndex":\s*([0-9]+)')

Op: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True, slots=True)
class Verbs:
    """The operations of a lock and of its release, on one key for one session."""

    lock: tuple[Op, ...]
    unlock: tuple[Op, ...]


def whole(key: str, session: str) -> Verbs:
    """Return what a lock with a queue sends: past our own place in the queue, and a look at it at the end."""
    bare = bare_lock(key, session)
    place: Op = {"Verb": "check-not-exists", "Key": f"{key}/.wait/{session}"}
    return Verbs((place, *bare.lock, {"Verb": "get-tree", "Key": f"{key}/.wait/"}), bare.unlock)


def bare_lock(key: str, session: str) -> Verbs:
    """Return what a lock without a queue would send."""
    value = base64.b64encode(own_name(None)).decode()
    common: Op = {"Key": key, "Value": value, "Flags": LOCK_FLAGS, "Session": session}
    check: Op = {"Verb": "check-index", "Key": key, "Index": _BLANK}
    return Verbs(({"Verb": "lock", **common},), (check, {"Verb": "unlock", **common}))


@dataclass(frozen=True, slots=True)
class PreparedPair:
    """The bytes of one lock and its release."""

    lock: bytes
    unlock_head: bytes
    unlock_tail: bytes

    @classmethod
    def of(cls, bed: Bed, verbs: Verbs) -> PreparedPair:
        """Prepare a pair for the bed's agent."""
        lock = _body(verbs.lock)
        before, after = _body(verbs.unlock).split(b"%d" % _BLANK)
        head = _head(bed, len(before) + _WIDTH + len(after))
        return cls(_head(bed, len(lock)) + lock, head + before, after)

    def unlock(self, index: bytes) -> bytes:
        """Return the release of a hold that was granted at ``index``."""
        return self.unlock_head + index.rjust(_WIDTH) + self.unlock_tail

    def run(self, link: Carrier) -> None:
        """Lock and unlock."""
        link.exchange(self.unlock(index_in(link.exchange(self.lock))))


def index_in(reply: bytes) -> bytes:
    """Return the index of a grant, as it is written in the reply. Raises RuntimeError without one."""
    found = _INDEX.search(reply)
    if found is None:
        message = f"no grant: {reply!r}"
        raise RuntimeError(message)
    return found[1]


def body_of(request: bytes) -> bytes:
    """Return a request without its head."""
    return request[request.index(_HEAD_END) + len(_HEAD_END) :]


class Carrier(Protocol):
    """Carries a request to the agent, and its reply back."""

    def exchange(self, request: bytes) -> bytes:
        """Send a request and return its whole reply. Raises RuntimeError unless it is a 200."""
        ...


class HttpxLink:
    """An ``httpx.Client``, which is given the body of each request."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def exchange(self, request: bytes) -> bytes:
        """Send a request and return its reply's body. Raises RuntimeError unless it is a 200."""
        reply = self._client.put("/v1/txn", content=body_of(request))
        if reply.status_code != http.client.OK:
            message = f"refused: {reply.content!r}"
            raise RuntimeError(message)
        return reply.content


class Link:
    """One connection, kept open."""

    def __init__(self, bed: Bed) -> None:
        self.socket = socket.create_connection((bed.host, bed.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, request: bytes) -> bytes:
        """Send a request and return its whole reply. Raises RuntimeError unless it is a 200."""
        self.socket.sendall(request)
        reply = self.socket.recv(_READ_SIZE)
        while not _is_whole(reply):
            reply += self.socket.recv(_READ_SIZE)
        if not reply.startswith(_OK):
            message = f"refused: {reply!r}"
            raise RuntimeError(message)
        return reply


def _is_whole(reply: bytes) -> bool:
    end = reply.find(_HEAD_END)
    if end < 0:
        return False
    at = reply.index(_LENGTH, 0, end + 2) + len(_LENGTH)
    return len(reply) >= end + len(_HEAD_END) + int(reply[at : reply.index(b"\r", at)])


def _body(ops: tuple[Op, ...]) -> bytes:
    return json.dumps([{"KV": op} for op in ops], separators=(",", ":")).encode()


def _head(bed: Bed, length: int) -> bytes:
    return (
        f"PUT /v1/txn HTTP/1.1\r\nContent-Length: {length}\r\nHost: {bed.host}:{bed.port}\r\n"
        f"User-Agent: consul-coord/{__version__}\r\nAccept-Encoding: identity\r\n\r\n"
    ).encode()


@contextlib.contextmanager
def session(bed: Bed, *, ttl: str = "600s") -> Iterator[str]:
    """Make a session that outlives the run without a renewal; destroyed at the end."""
    connection = http.client.HTTPConnection(bed.host, bed.port, timeout=10)
    with contextlib.closing(connection):
        body = json.dumps({"TTL": ttl, "NodeChecks": [], "LockDelay": "0s"})
        connection.request("PUT", "/v1/session/create", body=body)
        made = str(json.loads(connection.getresponse().read())["ID"])
        try:
            yield made
        finally:
            # The agent may have closed the connection meanwhile: a new one is opened by itself.
            connection.close()
            connection.request("PUT", f"/v1/session/destroy/{made}")
            connection.getresponse().read()


@dataclass(frozen=True, slots=True)
class RawSockets:
    """A pair on one plain socket."""

    name: str
    verbs: Callable[[str, str], Verbs]

    @contextlib.contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Connect and make the session."""
        link = Link(bed)
        with contextlib.closing(link.socket), session(bed) as made:
            prepared = PreparedPair.of(bed, self.verbs(bed.key(), made))
            yield timed(lambda: prepared.run(link))


@dataclass(frozen=True, slots=True)
class BareHttpx:
    """The same pair over an ``httpx.Client``."""

    name: str = "httpx.Client, the same two requests"

    @contextlib.contextmanager
    def open(self, bed: Bed) -> Iterator[Pairs]:
        """Make the client and the session."""
        import httpx

        headers = {"Accept-Encoding": "identity"}
        with httpx.Client(base_url=bed.address, headers=headers) as client, session(bed) as made:
            prepared, link = PreparedPair.of(bed, whole(bed.key(), made)), HttpxLink(client)
            yield timed(lambda: prepared.run(link))


RAW = RawSockets("raw sockets", whole)
RAW_BARE = RawSockets("raw sockets, a lock without a queue", bare_lock)
