"""Every endpoint against every bad reply: each becomes a typed error that says where, or does no harm.

Here nothing is repeated (the clock oversleeps the first pause): what is repeated is shown elsewhere.
"""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import (
    BODY_LIMIT,
    BrokenReply,
    ConsulCoordError,
    DecodeError,
    InvalidRequest,
    NoLeader,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    RateLimited,
    ResponseError,
    ServerError,
    SessionNotFound,
    TransportError,
    TxnFailed,
)
from consul_coord.http.messages import Retry
from consul_coord.models import Result
from tests.wire.agents import HANGS_UP, TRIAL, Reply, said
from tests.wire.catalogue import ENDPOINTS, META, SID, Endpoint
from tests.wire.clocks import HurriedClock
from tests.wire.servers import OK, always

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.wire.agents import ScriptedAgent
    from tests.wire.clients import Make
    from tests.wire.conftest import Serve

pytest_plugins = ["tests.wire.scripted"]
pytestmark = pytest.mark.timeout(20)

TOKEN = "b1gs3cret"
LONGEST_MESSAGE = 1000
MEBIBYTE = 1024 * 1024
HTML = b"<!DOCTYPE html><html><body><h1>Sign in to the network</h1></body></html>"
PAGE = {"Content-Type": "text/html"}
JSON = {"Content-Type": "application/json"}
GARBAGE = b"\xff\x00\x1b[31m" * 200
READS_BODY = {name: each for name, each in ENDPOINTS.items() if each.carries == "json"}


def hasty(make: Make) -> Any:
    """Return a client that tries everything once."""
    return make.client(token=TOKEN, clock=HurriedClock(oversleeps=3600.0))


def refusal(client: Any, endpoint: Endpoint) -> ConsulCoordError:
    """Return the error that a call ends with, after checking what holds for all of them."""
    try:
        value = endpoint.call(client)
    except ConsulCoordError as error:
        check(error, endpoint)
        return error
    pytest.fail(f"{endpoint.line} gave {value!r}")


def check(error: ConsulCoordError, endpoint: Endpoint) -> None:
    text = str(error)
    assert endpoint.method in text
    assert endpoint.path in text
    assert len(text) < LONGEST_MESSAGE
    assert text.isprintable()
    if isinstance(error, ResponseError | TransportError | DecodeError):
        assert (error.method, error.path) == (endpoint.method, endpoint.path)
    assert len(getattr(error, "body", "")) <= BODY_LIMIT
    if isinstance(error, TransportError | DecodeError):
        assert error.__cause__ is not None
    packed = pickle.dumps(error)
    assert len(packed) < 4 * LONGEST_MESSAGE
    assert TOKEN.encode() not in packed
    again = pickle.loads(packed)
    assert (type(again), str(again), vars(again)) == (type(error), text, vars(error))


# --- bodies


BAD_BODIES = {
    "empty": b"",
    "blank": b" \r\n",
    "malformed": b'[{"Key": jobs}]',
    "half": b'[{"Key":"jobs/a b"',
    "two": b"true true",
    "binary": GARBAGE,
    "page": HTML,
    "NaN": b"NaN",
    "deep": b"[" * 100_000,
    "long number": b"9" * 5000,
    "number": b"5",
    "list of numbers": b"[5]",
    "list of nulls": b"[null]",
    "list of lists": b"[[]]",
    "list of objects": b'[{"Future":5}]',
    "object": b'{"Future":5}',
    "endless name": b'{"' + b"\\u001b[31m" + b"a" * 100_000 + b'":5}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_success_with_a_bad_body(make: Make, scripted: ScriptedAgent, name: str) -> None:
    client = hasty(make)
    scripted.always(Reply(200, BAD_BODIES[name], PAGE if name == "page" else JSON))
    for endpoint in READS_BODY.values():
        assert type(refusal(client, endpoint)) is DecodeError
    assert scripted.lines == [endpoint.line for endpoint in READS_BODY.values()]


def test_a_page_where_nothing_or_bytes_should_be(make: Make, scripted: ScriptedAgent) -> None:
    client = hasty(make)
    scripted.always(Reply(200, HTML, PAGE))
    for name, endpoint in ENDPOINTS.items():
        if name not in READS_BODY:
            assert type(refusal(client, endpoint)) is DecodeError


def spoiled(value: Any) -> Iterator[Any]:
    """Return copies of a JSON value in each of which one part has another type."""
    others: tuple[Any, ...] = ([[[]]], {"a": {"b": None}}, -1, 1.5, 2**64, "\udcff!", True)
    places = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
    for place in places:
        for other in others:
            if type(other) is not type(value[place]):
                changed = copy.copy(value)
                changed[place] = other
                yield changed
        for part in spoiled(value[place]):
            changed = copy.copy(value)
            changed[place] = part
            yield changed


@pytest.mark.parametrize(
    "name",
    [
        "kv.get",
        "session.renew",
        "agent.checks",
        "query.get",
        "txn that reads",
        "session.create",
    ],
)
def test_any_part_of_another_type(make: Make, scripted: ScriptedAgent, name: str) -> None:
    """It is refused if the client reads it, and makes no difference if not."""
    client, endpoint = hasty(make), ENDPOINTS[name]
    errors = 0
    for body in spoiled(json.loads(endpoint.reply.body)):
        scripted.always(Reply(200, json.dumps(body).encode(), endpoint.reply.headers))
        try:
            value = endpoint.call(client)
        except DecodeError as error:
            check(error, endpoint)
            errors += 1
        else:
            assert type(value) is type(endpoint.value)
    assert errors > 0


def test_a_wrong_content_type_does_no_harm(make: Make, scripted: ScriptedAgent) -> None:
    client = hasty(make)
    for endpoint in ENDPOINTS.values():
        reply = endpoint.reply
        scripted.always(
            Reply(200, reply.body, {**reply.headers, "Content-Type": "text/html; charset=ebcdic"})
        )
        assert endpoint.call(client) == endpoint.value


def test_a_large_page_with_a_good_status(make: Make, scripted: ScriptedAgent) -> None:
    client = hasty(make)
    scripted.always(Reply(200, HTML + b" " * 10 * MEBIBYTE, PAGE))
    for name in ("kv.list", "kv.get_raw", "txn", "agent.pass_check"):
        began = time.monotonic()
        assert type(refusal(client, ENDPOINTS[name])) is DecodeError
        assert time.monotonic() - began < 5


# --- what is no whole reply


NO_REPLIES = {
    "hang-up": HANGS_UP,
    "cut short": Reply(200, b'[{"Key', JSON, missing=100),
    "compressed": Reply(200, gzip.compress(b"true"), {**JSON, "Content-Encoding": "gzip"}),
    "compressed refusal": Reply(500, gzip.compress(b"no"), {"Content-Encoding": "gzip"}),
    "too many headers": Reply(200, b"true", {f"X-{number}": "1" for number in range(150)}),
    "endless header": Reply(200, b"true", {"X-Consul-Index": "1" * 70_000}),
}


@pytest.mark.parametrize("name", NO_REPLIES)
def test_no_whole_reply(make: Make, scripted: ScriptedAgent, name: str) -> None:
    scripted.always(NO_REPLIES[name])
    for endpoint in ENDPOINTS.values():
        scripted.serves_trials = endpoint.line != TRIAL
        error = refusal(hasty(make), endpoint)  # one that is hung up on again and again thinks of the limit
        assert type(error) is BrokenReply
        assert error.outcome_unknown is (endpoint.retry is not Retry.READ)


# --- refusals


REFUSALS: dict[str, tuple[int, bytes, type[ResponseError]]] = {
    "400": (400, b"Bad request: Invalid query parameter", InvalidRequest),
    "400, namespaces": (
        400,
        b'Bad request: Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature',
        InvalidRequest,
    ),
    "403": (403, b"Permission denied", PermissionDenied),
    "403, newer": (
        403,
        b"rpc error making call: Permission denied: token with AccessorID '6a1' lacks permission 'key:write'",
        PermissionDenied,
    ),
    "403, page": (403, HTML, PermissionDenied),
    "405": (405, b"method GET not allowed", InvalidRequest),
    "413": (
        413,
        b"Request body(524289 bytes) too large, max size: 524288 bytes. See <url>.",
        PayloadTooLarge,
    ),
    "418, garbage": (418, GARBAGE, InvalidRequest),
    "429": (429, b"", RateLimited),
    "500": (500, b"rpc error making call: rpc error making call: EOF", ServerError),
    "500, no leader": (500, b"rpc error making call: No cluster leader", NoLeader),
    "500, garbage": (500, GARBAGE, ServerError),
    "503": (503, b"", ServerError),
    "503, page": (503, HTML, ServerError),
    "599, 10 MB": (599, b"<p>\x1b" * (10 * MEBIBYTE // 4), ServerError),
    "204": (204, b"", ResponseError),
    "206": (206, b"true", ResponseError),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal(make: Make, scripted: ScriptedAgent, name: str) -> None:
    status, body, kind = REFUSALS[name]
    client = hasty(make)
    scripted.always(Reply(status, body))
    for endpoint in ENDPOINTS.values():
        error = refusal(client, endpoint)
        assert type(error) is kind
        assert isinstance(error, ResponseError)
        assert error.status == status
        assert error.body == body.decode(errors="replace").strip()[:BODY_LIMIT]
        if isinstance(error, PermissionDenied):
            assert error.needed[: len(endpoint.needed)] == endpoint.needed
            assert all(rule in str(error) for rule in endpoint.needed)


def test_not_found(make: Make, scripted: ScriptedAgent) -> None:
    client = hasty(make)
    scripted.always(Reply(404, HTML, PAGE))
    for name, endpoint in ENDPOINTS.items():
        error = refusal(client, endpoint)
        renews = name == "session.renew"
        assert type(error) is (DecodeError if endpoint.absent else SessionNotFound if renews else NotFound)


def test_absent(make: Make, scripted: ScriptedAgent) -> None:
    """Only Consul's own 404 says that there is no such key."""
    client = hasty(make)
    nothing = {"kv.list": (), "kv.keys": ()}
    scripted.always(Reply(404, b"", META))
    for name, endpoint in ENDPOINTS.items():
        if endpoint.path.startswith("/v1/kv/") and endpoint.retry is Retry.READ:
            expected = Result(nothing.get(name), 12, known_leader=True, last_contact=0.0)
            assert endpoint.call(client) == expected
    scripted.always(said(404, "Query not found"))
    assert client.query.get(SID).value is None


@pytest.mark.parametrize("body", [b"", b"no", HTML, b"[]", b'{"Errors":5}', b'{"Errors":[{"OpIndex":"0"}]}'])
def test_conflict(make: Make, scripted: ScriptedAgent, body: bytes) -> None:
    client = hasty(make)
    scripted.always(Reply(409, body))
    for name, endpoint in ENDPOINTS.items():
        error = refusal(client, endpoint)
        assert type(error) is (DecodeError if name.startswith("txn") else InvalidRequest)


@pytest.mark.parametrize(("length", "kind"), [(50_000, TxnFailed), (100_000, DecodeError)])
def test_a_conflict_that_talks_much(
    make: Make, scripted: ScriptedAgent, length: int, kind: type[ConsulCoordError]
) -> None:
    """Of refusals more than 64 KiB is not even read."""
    what = "\x1b[31m" + "x" * length
    body = json.dumps({"Results": None, "Errors": [{"OpIndex": 0, "What": what}]})
    scripted.always(Reply(409, body.encode(), JSON))
    assert type(refusal(hasty(make), ENDPOINTS["txn"])) is kind


@pytest.mark.parametrize("results", [b"[]", b"null", b"[[]]", b"{}"])
def test_a_transaction_without_its_results(make: Make, scripted: ScriptedAgent, results: bytes) -> None:
    """Whoever gets an answer may rely on it: what was locked is in there."""
    scripted.always(Reply(200, b'{"Results":%b,"Errors":null}' % results, JSON))
    assert type(refusal(hasty(make), ENDPOINTS["txn"])) is DecodeError


@pytest.mark.parametrize("status", [301, 302, 307])
def test_redirects_are_not_followed(make: Make, scripted: ScriptedAgent, serve: Serve, status: int) -> None:
    elsewhere = serve(always(OK))
    client = hasty(make)
    scripted.always(Reply(status, b"", {"Location": f"{elsewhere.address}/v1/kv/a"}))
    for endpoint in ENDPOINTS.values():
        error = refusal(client, endpoint)
        assert type(error) is InvalidRequest
        assert "redirect" in str(error)
    assert elsewhere.connections == 0
    assert len(scripted.requests) == len(ENDPOINTS)


# --- headers


GARBAGE_IN_HEADERS = {
    "X-Consul-Index": (
        *("", "abc", "-1", "1.5", "1e3", "0x10", "+5", "5, 5", "\xb2"),
        *("99999999999999999999999", "1" * 10_000),
    ),
    "X-Consul-Lastcontact": ("never", "-1", "9" * 400),
    "X-Consul-Knownleader": ("maybe", "1", "true, false"),
}


@pytest.mark.parametrize("header", GARBAGE_IN_HEADERS)
def test_header_garbage_says_nothing(make: Make, scripted: ScriptedAgent, header: str) -> None:
    client = hasty(make)
    said_nothing: dict[str, dict[str, Any]] = {
        "X-Consul-Index": {"index": 0},
        "X-Consul-Lastcontact": {"last_contact": None},
        "X-Consul-Knownleader": {"known_leader": None},
    }
    for endpoint in ENDPOINTS.values():
        known = endpoint.value
        if not isinstance(known, Result):
            continue
        for garbage in GARBAGE_IN_HEADERS[header]:
            scripted.always(Reply(200, endpoint.reply.body, {**endpoint.reply.headers, header: garbage}))
            assert endpoint.call(client) == replace(known, **said_nothing[header])


def test_a_watch_of_an_index_that_says_nothing_keeps_its_pace(make: Make, scripted: ScriptedAgent) -> None:
    """The agent answers at once each time; it is not asked in a tight loop."""
    client = make.client()
    scripted.always(Reply(200, ENDPOINTS["kv.get"].reply.body, {"X-Consul-Index": "soon"}))
    watch = client.kv.watch("jobs/a b")
    assert next(watch).index == 0
    began = time.monotonic()
    waiting = threading.Thread(target=lambda: list(watch))
    waiting.start()
    scripted.wait_for(lambda _: len(scripted.requests) >= 15)
    assert time.monotonic() - began > 0.3
    watch.close()
    waiting.join()
