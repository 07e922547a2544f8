"""Everything that reads what comes from outside, each as a function of bytes that may raise typed errors.

Rules
- A target takes any bytes at all. It returns something, or raises one of ``TYPED``; whatever else it raises
  is a finding.
- Each target has seeds: inputs that it accepts. What is far from all of them is refused at the door, and
  proves little.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from consul_coord.config import Settings
from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.http.messages import Call, Response
from consul_coord.http.transport.base import Limits
from consul_coord.http.transport.wire import Garbled, ReplyReader
from consul_coord.models import SEMAPHORE_FLAGS, KVPair, Sequencer
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.election import notes
from consul_coord.recipes.lock import waitqueue as lockqueue
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.semaphore import slots
from consul_coord.recipes.session import handling as session_ops
from consul_coord.sync import endpoints
from consul_coord.testing.history import load
from tests.wire.catalogue import ENDPOINTS, META, SID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TYPED: Final = (ConsulCoordError, Garbled)
"""What a target may raise. A transport turns Garbled into BrokenReply."""
_STATUSES: Final = (200, 404, 403, 409, 500, 503, 429, 400, 413, 204, 301, 999)
_HEADERS: Final[tuple[Mapping[str, str], ...]] = (
    {name.lower(): value for name, value in META.items()},
    {},
    {"x-consul-index": "-1"},
    {"x-consul-index": "9" * 30, "x-consul-knownleader": "maybe", "x-consul-lastcontact": "soon"},
    {"x-consul-index": "\u0661", "content-type": "text/html"},
)
_LIMITS: Final = Limits(max_head=2_000, max_headers=20, max_body=4_000, max_error_body=500)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of foreign bytes, and inputs that it accepts."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


class _CapturedError(Exception):
    """Carries the call that a facade was about to perform."""

    def __init__(self, call: Call[Any]) -> None:
        super().__init__()
        self.call = call


def _capture(call: Call[Any], *, timeout: float | None = None) -> NoReturn:
    raise _CapturedError(call)


_RUNNER: Final[Any] = SimpleNamespace(perform=_capture, placed=lambda options: options)
_CLIENT: Final = SimpleNamespace(
    kv=endpoints.KV(_RUNNER),
    session=endpoints.Sessions(_RUNNER),
    agent=endpoints.Agent(_RUNNER),
    catalog=endpoints.Catalog(_RUNNER),
    health=endpoints.Health(_RUNNER),
    query=endpoints.Query(_RUNNER),
    status=endpoints.Status(_RUNNER),
    txn=lambda *ops, options=None: _capture(kv.txn(*ops, options=options)),
)


def call_of(make: Callable[[Any], Any]) -> Call[Any]:
    """Return the call behind a method of a client."""
    try:
        make(_CLIENT)
    except _CapturedError as captured:
        return captured.call
    raise AssertionError("no call was made")


def _endpoint(make: Callable[[Any], Any], body: bytes) -> Target:
    """Return the decoder of one endpoint: two bytes choose status and headers, the rest is the body."""
    call = call_of(make)

    def read(data: bytes) -> object:
        status = _STATUSES[data[0] % len(_STATUSES)] if data else 200
        headers = _HEADERS[data[1] % len(_HEADERS)] if len(data) > 1 else {}
        return call.decode(Response(status, headers, data[2:]))

    answers = (b"\0\0" + body,) * 6  # most often: there is most to be read
    refusals = (b"\1\0", b"\2\0Permission denied", b"\4\0No cluster leader", b"\3\0" + _REFUSED)
    return Target(read, (*answers, *refusals))


_REFUSED: Final = json.dumps(
    {"Results": None, "Errors": [{"OpIndex": 0, "What": "failed to lock key, lock is already held"}]}
).encode()


def _reply(data: bytes) -> object:
    """Read a whole reply off the wire, cut where the first byte says."""
    reader = ReplyReader("GET", _LIMITS)
    cut = data[0] if data else 0
    for piece in (data[1 : cut + 1], data[cut + 1 :]):
        if piece and reader.feed(piece):
            return reader.response
    reader.feed(b"")
    return reader.response


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def _semaphore(data: bytes) -> object:
    """Read a record and a contender, as one listing, and judge it."""
    record, _, value = data.partition(b"\0")
    pairs = (
        KVPair("p/.lock", record, SEMAPHORE_FLAGS, modify_index=5),
        KVPair(f"p/{SID}", value, SEMAPHORE_FLAGS, session=SID, create_index=3, modify_index=4),
        KVPair("p/" + value.decode("latin-1"), value, SEMAPHORE_FLAGS, create_index=2, modify_index=2),
    )
    listing = slots.read("p", pairs, limit=2, flags=SEMAPHORE_FLAGS, index=5)
    verdict = slots.judge(listing, SID, born=3)
    slots.value_of(pairs[1])
    return listing.record.encode(), listing.held, listing.dead, listing.waiters, verdict


def _queue(data: bytes) -> object:
    """Read a queue with a strange contender and strange notes, and judge it, for locks of both kinds."""
    name, _, value = data.partition(b"\0")
    strange = KVPair("k/.wait/" + name.decode("latin-1"), value, session=name.decode("latin-1") or None)
    own = KVPair(f"k/.wait/{SID}", value, session=SID, create_index=7, modify_index=8)
    lock = KVPair("k", value, session=name.decode("latin-1"), modify_index=6)
    look = waitqueue.read("k", (lock, strange, own))
    told = notes.find(notes.heir_key("k"), (strange,)) or KVPair(notes.heir_key("k"), value, modify_index=9)
    notes.counts(told, look)
    notes.term_of(lock, KVPair(notes.term_key("k"), value, modify_index=9))
    return (
        lockqueue.judge(look, SID),
        rwqueue.judge(look, SID, rwqueue.mode_of(own), born=7),
        rwqueue.value_of(own),
    )


def _address(data: bytes) -> object:
    names = ("ADDR", "SSL", "AUTH", "TOKEN", "SSL_VERIFY")
    environ = dict(zip((f"CONSUL_HTTP_{name}" for name in names), _text(data).split("\0"), strict=False))
    return repr(Settings.resolve(environ=environ))


def _history(data: bytes) -> object:
    return load(io.StringIO(_text(data), newline=""), cut_off=True)


_RECORD: Final = slots.Record(3, (SID,)).encode()
_REPLIES: Final = (
    b"\x30HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Consul-Index: 5\r\n\r\ntrue",
    b"\x10HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntrue\r\n0\r\nX-T: 1\r\n\r\n",
    b"\x05HTTP/1.0 500 No\r\n\r\nuntil the end",
    b"\x20HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
)
_LINE: Final = (
    b'{"at":1.5,"process":"p","kind":"acquired","actor":"a","key":"k","session":"s","fence":7,'
    b'"until":9.0,"detail":""}\n'
)
_SID: Final = SID.encode()
_SEMAPHORES: Final = (
    _RECORD + b"\0consul-coord:wait\nme",
    b"\0" + _SID,
    b'{"limit":1,"holders":["x"],"More":{}}\0',
)
_QUEUES: Final = (_SID + b"\0" + _SID + b" 12", b"heir\0" + _SID, b"\0r")
_SEQUENCERS: Final = (b"12:" + _SID + b":jobs/a%20b", b"0::", b"1:a:%ED%A0%80")
_EXPORTED: Final = b"consul-coord-session:1:" + _SID
_SETTINGS: Final = (
    b"http://127.0.0.1:8500\0true\0a:b\0token\0false",
    b"unix:///run/consul",
    b"https://[::1]:1/x%20y",
    b"host:1",
)
TARGETS: Final[Mapping[str, Target]] = {
    **{name: _endpoint(one.call, one.reply.body) for name, one in ENDPOINTS.items()},
    "a reply on the wire": Target(_reply, _REPLIES),
    "a semaphore": Target(_semaphore, _SEMAPHORES),
    "a queue": Target(_queue, _QUEUES),
    "a sequencer": Target(lambda data: Sequencer.parse(_text(data)), _SEQUENCERS),
    "an exported session": Target(lambda data: session_ops.parse(_text(data)), (_EXPORTED,)),
    "settings": Target(_address, _SETTINGS),
    "a history": Target(_history, (_LINE * 2,)),
}
