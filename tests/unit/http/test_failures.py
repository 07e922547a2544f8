"""Every refusal that a real agent was seen to give, and the error that it becomes."""

from __future__ import annotations

import pickle
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord import errors
from consul_coord.http.endpoints import agent, kv, query, session
from consul_coord.http.failures import (
    NO_CONNECTION,
    NO_LEADER,
    NO_REPLY,
    NOT_ANSWERED,
    failure,
    next_step,
    outcome_unknown,
    retryable,
)
from consul_coord.http.messages import Request, Response
from consul_coord.models import Blocker, LossReason, PreparedQuery, TxnFailure, TxnOp

SID = "adf4238a-882b-9ddc-4a9d-5b6758e4159e"
PUT = kv.put("k", b"v").request
CREATE = session.create().request
RENEW = session.renew(SID).request
PASS = agent.pass_check("c1").request
QUERY = query.create(PreparedQuery(service="web")).request

Row: TypeAlias = tuple[Request, int, str, type[errors.ConsulCoordError], str]

TABLE: list[Row] = [
    (PUT, 500, "No cluster leader", errors.NoLeader, "elected"),
    (PUT, 503, "No cluster leader", errors.NoLeader, "elected"),
    (PUT, 500, "rpc error making call: EOF", errors.ServerError, "may have been applied"),
    (
        PUT,
        500,
        "rpc error getting client: failed to get conn: dial tcp",
        errors.ServerError,
        "reaches no server",
    ),
    (PUT, 500, f'invalid session "{SID}"', errors.SessionNotFound, "create a new one"),
    (
        QUERY,
        500,
        "invalid session: index error: UUID must be 36 characters",
        errors.InvalidRequest,
        "not the id",
    ),
    (RENEW, 500, "failed session lookup: index error: UUID must be 36", errors.InvalidRequest, "not the id"),
    (QUERY, 500, "failed prepared query lookup: index error: UUID", errors.InvalidRequest, "id of a query"),
    (PUT, 500, "Cannot modify non-existent prepared query: 'x'", errors.NotFound, "no such query"),
    (PUT, 500, "missing session", errors.InvalidRequest, "name a session"),
    (RENEW, 400, "Missing session", errors.InvalidRequest, "does not understand"),
    (CREATE, 500, "Missing node registration", errors.NodeNotRegistered, "datacenter"),
    (PUT, 500, "Missing node registration", errors.InvalidRequest, "register it first"),
    (CREATE, 500, "Must provide Node", errors.InvalidRequest, "requires"),
    (
        CREATE,
        500,
        "Invalid Session TTL '9000000000', must be between [10s=24h0m0s]",
        errors.InvalidRequest,
        "take 10s to 24h0m0s",
    ),
    (CREATE, 500, "Invalid Session TTL", errors.InvalidRequest, "choose another ttl"),
    (CREATE, 500, "Session TTL '10' invalid: time: missing unit", errors.InvalidRequest, "with a unit"),
    (CREATE, 500, "Invalid Behavior setting 'bogus'", errors.InvalidRequest, "'release' or 'delete'"),
    (CREATE, 500, "Missing check 'nope' registration", errors.SessionCheckFailed, "no such health check"),
    (CREATE, 500, "Check 'c1' is in critical state", errors.SessionCheckFailed, "pass it first"),
    (
        CREATE,
        500,
        "cross datacenter lock must be created at server agent",
        errors.InvalidRequest,
        "server agent",
    ),
    (PUT, 500, 'strconv.ParseUint: parsing "abc": invalid syntax', errors.InvalidRequest, "64-bit"),
    (
        PUT,
        500,
        "invalid key name, keys should respect the ...",
        errors.InvalidRequest,
        "every release takes letters, digits",
    ),
    (PUT, 500, "No path to datacenter", errors.ServerError, "out of reach"),
    (PUT, 500, 'CheckID "x" does not have associated TTL', errors.NotFound, "TTL check"),
    (QUERY, 500, "name 'q1' aliases an existing query name", errors.InvalidRequest, "another name"),
    (
        QUERY,
        500,
        "Invalid prepared query: Must be bound to a session",
        errors.InvalidRequest,
        "name or a session",
    ),
    (PUT, 500, "", errors.ServerError, "may have been applied"),
    (PUT, 502, "<html>Bad gateway</html>", errors.ServerError, "may have been applied"),
    (PUT, 503, "", errors.ServerError, "try again later"),
    (
        PUT,
        400,
        'Bad request: Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature',
        errors.InvalidRequest,
        "namespace unset",
    ),
    (PUT, 400, "", errors.InvalidRequest, "does not understand"),
    (PUT, 400, "Client sent an HTTP request to an HTTPS server.\n", errors.InvalidRequest, "use https://"),
    (PUT, 401, "", errors.InvalidRequest, "http_auth"),
    (PUT, 403, "Permission denied", errors.PermissionDenied, 'key:write on "k"'),
    (CREATE, 403, "Permission denied", errors.PermissionDenied, "session:write on the agent's own node"),
    (PUT, 403, "ACL not found", errors.PermissionDenied, "do not know this token"),
    (PUT, 403, "Endpoint is blocked by agent configuration", errors.PermissionDenied, "blocks the call"),
    (PUT, 403, "Access is restricted", errors.PermissionDenied, "takes writes from elsewhere"),
    (RENEW, 404, f"Session id '{SID}' not found", errors.SessionNotFound, "what it held is lost"),
    (PUT, 404, "", errors.NotFound, "no such thing"),
    (RENEW, 404, "", errors.SessionNotFound, "what it held is lost"),
    (PUT, 405, "method GET not allowed", errors.InvalidRequest, "no such call"),
    (PUT, 409, "", errors.InvalidRequest, "refused"),
    (
        PUT,
        413,
        "Request body(524289 bytes) too large, max size: 524288 bytes.",
        errors.PayloadTooLarge,
        "send less",
    ),
    (PUT, 418, "", errors.InvalidRequest, "refused"),
    (PUT, 501, "Unsupported method ('PUT')", errors.ServerError, "is it a Consul agent?"),
    (PUT, 429, "", errors.RateLimited, "later"),
    (PUT, 301, "", errors.InvalidRequest, "redirects are not followed"),
    (PUT, 307, "", errors.InvalidRequest, "redirects are not followed"),
    (PUT, 308, "", errors.InvalidRequest, "redirects are not followed"),
    (PUT, 204, "", errors.ResponseError, "no status that Consul uses"),
    (PUT, 999, "", errors.ServerError, "may have been applied"),
    (PUT, 0, "", errors.ResponseError, "no status that Consul uses"),
]


LATER: list[Row] = [
    (
        PASS,
        404,
        'Unknown check ID "c1". Ensure that the check ID is passed, not the check name.',
        errors.NotFound,
        "no such thing",
    ),
    (PUT, 404, "Invalid URL path: not a recognized HTTP API endpoint", errors.NotFound, "no such thing"),
    (
        PUT,
        400,
        'Invalid query parameter: "partition" - Partitions are a Consul Enterprise feature',
        errors.InvalidRequest,
        "partition unset",
    ),
    (
        PUT,
        403,
        f"Permission denied: token with AccessorID '{SID}' lacks permission 'key:write' on \"k\"",
        errors.PermissionDenied,
        'key:write on "k"',
    ),
    (
        CREATE,
        403,
        "Permission denied: anonymous token lacks permission 'session:write' on \"n\". The anonymous",
        errors.PermissionDenied,
        "session:write on the agent's own node",
    ),
    (
        PUT,
        429,
        "rate limit exceeded, try again later or against a different server",
        errors.RateLimited,
        "later",
    ),
    (
        PUT,
        503,
        "rate limit exceeded for operation that can only be performed by the leader, try again later",
        errors.RateLimited,
        "later",
    ),
    (
        PUT,
        307,
        '<a href="/v1/kv/k">Temporary Redirect</a>.',
        errors.InvalidRequest,
        "redirects are not followed",
    ),
    (
        PUT,
        403,
        "ACL system must be bootstrapped before making any requests: ACL not found",
        errors.PermissionDenied,
        "nobody has bootstrapped",
    ),
    (PUT, 500, "rpc error making call: i/o deadline reached", errors.ServerError, "may have been applied"),
    (
        PUT,
        500,
        "Raft leader not found in server lookup mapping",
        errors.ServerError,
        "may have been applied",
    ),
    (PUT, 500, "Remote DC has no server currently reachable", errors.ServerError, "may have been applied"),
]
"""The texts of later versions that differ, or are new: those of 1.20.6, or of their source."""

PREFIXES = [
    "",
    "rpc error making call: ",
    "rpc error making call: rpc error making call: ",
    "raft apply failed: ",
    "apply failed: ",
]
"""What servers put before their words: the first three in 1.8.7, and the others in 1.20.6."""


@pytest.mark.parametrize("row", TABLE + LATER)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_table(row: Row, prefix: str) -> None:
    request, status, body, kind, advice = row
    error = failure(request, Response(status, {}, (prefix + body).encode()))
    assert type(error) is kind
    for part in (request.method, request.path, str(status), body[:40], advice):
        assert part in str(error)


@pytest.mark.parametrize("body", ["boom", "rpc error making call: EOF"])
def test_a_read_that_failed_is_not_said_to_have_written(body: str) -> None:
    error = failure(kv.get("k").request, Response(500, {}, body.encode()))
    assert type(error) is errors.ServerError
    assert "write" not in str(error)
    assert "try again" in str(error)


def test_fields() -> None:
    denied = failure(PUT, Response(403, {}, b"Permission denied"))
    assert isinstance(denied, errors.PermissionDenied)
    assert denied.needed == ('key:write on "k"',)
    assert (denied.method, denied.path, denied.status, denied.body) == (
        "PUT",
        "/v1/kv/k",
        403,
        "Permission denied",
    )
    for call, status, text in (
        (RENEW, 404, f"Session id '{SID}' not found"),
        (PUT, 500, f'rpc error making call: invalid session "{SID}"'),
    ):
        gone = failure(call, Response(status, {}, text.encode()))
        assert isinstance(gone, errors.SessionNotFound)
        assert (gone.session, gone.status) == (SID, status)


@pytest.mark.parametrize(
    ("body", "words"), [(b"", "500 ("), (b" \n", "500 ("), (b"\0", "500 ("), (b" boom\n", "500: boom (")]
)
def test_a_refusal_without_words_is_shown_without_any(body: bytes, words: str) -> None:
    assert str(failure(PUT, Response(500, {}, body))).startswith(f"PUT /v1/kv/k: {words}the server failed;")


def test_bodies_are_cut_and_cleaned() -> None:
    error = failure(PUT, Response(500, {}, b"\x1b[31mred\n" + b"x" * 100_000 + b"\xff"))
    assert isinstance(error, errors.ServerError)
    assert len(error.body) == errors.BODY_LIMIT
    assert len(str(error)) < errors.BODY_LIMIT
    assert str(error).isprintable()


@given(st.integers(-1, 1200), st.binary(max_size=80))
def test_any_status_and_body_give_an_error_that_says_where(status: int, body: bytes) -> None:
    error = failure(PUT, Response(status, {}, body))
    assert isinstance(error, errors.ConsulCoordError)
    assert str(error).startswith(f"PUT /v1/kv/k: {status}")


FACTS = {"method": "GET", "path": "/p"}
REFUSED = {**FACTS, "status": 500, "body": "b"}
ABOUT = {"key": "k", "session": "s"}
EVERY_ERROR: list[errors.ConsulCoordError] = [
    errors.ConsulCoordError("m"),
    errors.ConfigError("m"),
    errors.InvalidArgument("m"),
    errors.InvalidKey("m", key="/k"),
    errors.ValueTooLarge("m", size=2, limit=1),
    errors.DecodeError("m", body="b", **FACTS),
    errors.ClientClosed("m"),
    errors.BackgroundFailed("m"),
    errors.TransportError("m", outcome_unknown=True, **FACTS),
    errors.ConnectFailed("m", outcome_unknown=False, **FACTS),
    errors.CertificateRefused("m", outcome_unknown=False, **FACTS),
    errors.TooManyConnections("m", outcome_unknown=False, **FACTS),
    errors.RequestTimeout("m", outcome_unknown=True, **FACTS),
    errors.BrokenReply("m", outcome_unknown=True, **FACTS),
    *(
        kind("m", method="GET", path="/p", status=500, body="b")
        for kind in (
            errors.ResponseError,
            errors.NotFound,
            errors.RateLimited,
            errors.NoLeader,
            errors.InvalidRequest,
            errors.PayloadTooLarge,
            errors.ServerError,
            errors.NodeNotRegistered,
        )
    ),
    errors.SessionNotFound("m", session="s"),
    errors.PermissionDenied("m", needed=["a", "b"]),
    errors.TxnFailed("m", failures=[TxnFailure(0, TxnOp.get("k"), "missing", "w")]),
    *(
        kind("m", key="k", session="s")
        for kind in (
            errors.CoordinationError,
            errors.AcquireCancelled,
            errors.AlreadyHeld,
            errors.NotHeld,
            errors.UnsafeSession,
            errors.SessionCheckFailed,
        )
    ),
    errors.AcquireTimeout("m", blocker=Blocker("queued", "t", 3), waited=1.5, **ABOUT),
    errors.LockLost("m", fence=3, reason=LossReason.EXPIRED, **ABOUT),
    errors.LeadershipLost("m", fence=3, reason=LossReason.EXPIRED, **ABOUT),
    errors.KeyConflict("m", flags=2**64 - 1, **ABOUT),
    errors.SemaphoreLimitConflict("m", local=1, remote=2, **ABOUT),
]


def test_the_list_of_errors_is_whole() -> None:
    def below(kind: type[errors.ConsulCoordError]) -> set[type[errors.ConsulCoordError]]:
        return {kind}.union(*(below(each) for each in kind.__subclasses__()))

    own = {kind for kind in below(errors.ConsulCoordError) if kind.__module__ == errors.__name__}
    assert {type(error) for error in EVERY_ERROR} == own


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickling(error: errors.ConsulCoordError) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is type(error)
        assert (copy.args, vars(copy), str(copy)) == (error.args, vars(error), str(error))


WITH_BODY = [error for error in EVERY_ERROR if hasattr(error, "body")]


@pytest.mark.parametrize("error", WITH_BODY, ids=lambda error: type(error).__name__)
def test_no_error_keeps_more_of_a_reply_than_its_beginning(error: errors.ConsulCoordError) -> None:
    long: Any = type(error)("m", **{**vars(error), "body": "b" * 100_000})
    assert long.body == "b" * errors.BODY_LIMIT


RETRYABLE = {
    "TransportError",
    "ConnectFailed",
    "RequestTimeout",
    "TooManyConnections",
    "BrokenReply",
    "RateLimited",
    "NoLeader",
    "ServerError",
    "NodeNotRegistered",
}
UNKNOWN = {
    "TransportError",
    "RequestTimeout",
    "BrokenReply",
    "NoLeader",
    "ServerError",
    "DecodeError",
    "ResponseError",
    # What ends a call from outside says nothing of what was sent before.
    "AcquireCancelled",
    "ClientClosed",
}


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_what_may_be_repeated_and_what_is_unknown(error: errors.ConsulCoordError) -> None:
    name = type(error).__name__
    assert retryable(error) is (name in RETRYABLE)
    assert outcome_unknown(error) is (name in UNKNOWN)


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt(), TimeoutError()])
def test_what_ends_a_call_from_outside_leaves_its_outcome_unknown(error: BaseException) -> None:
    assert not retryable(error)
    assert outcome_unknown(error)


def certificate(why: str) -> errors.CertificateRefused:
    return errors.CertificateRefused(why, method="GET", path="/", outcome_unknown=False)


def unconnected(why: str) -> errors.ConnectFailed:
    return errors.ConnectFailed(why, method="GET", path="/", outcome_unknown=False)


def broken(why: str) -> errors.BrokenReply:
    return errors.BrokenReply(why, method="GET", path="/", outcome_unknown=True)


def timed_out(words: str, *, path: str = "/v1/kv/k") -> errors.RequestTimeout:
    return errors.RequestTimeout(words, method="GET", path=path, outcome_unknown=False)


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (unconnected("refused"), "Is an agent running there?"),
        (certificate("unable to get local issuer certificate"), "ca_cert (CONSUL_CACERT)"),
        (certificate("self-signed certificate in certificate chain"), "ca_cert (CONSUL_CACERT)"),
        (certificate("Hostname mismatch, certificate is not valid for 'x'"), "server_name"),
        (certificate("IP address mismatch, certificate is not valid for '::1'"), "server_name"),
        (certificate("certificate has expired"), ""),
        (unconnected("[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate"), "Set client_cert"),
        (unconnected("[SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] sslv3 alert handshake failure"), ""),
        (broken("[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate"), "Set client_cert"),
        (broken("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"), "client_key"),
        (broken("the connection ended"), ""),
        (broken("bad reply from X: this is not HTTP/1"), "8500 by default"),
        (timed_out(f"{NO_CONNECTION} from X within 1 s"), "Is an agent running there?"),
        (timed_out(f"{NO_REPLY} from X within 1 s"), "consul-coord doctor"),
        (timed_out(f"the agent {NOT_ANSWERED} the request"), "consul-coord doctor"),
        (timed_out(f"{NO_REPLY} from X within 1 s", path="/v1/status/leader"), ""),
        (timed_out(f"{NO_REPLY} from X within 1 s. {NO_LEADER}"), ""),
        (timed_out("others changed the key again and again"), ""),
        (errors.ServerError("failed", method="GET", path="/", status=500), ""),
        (None, ""),
    ],
)
def test_the_next_step_where_nobody_answered_is_named_once(error: Exception | None, step: str) -> None:
    told = next_step(error)
    assert (step in told) if step else not told
    if error is not None:
        error.args = (f"{error}{told}",)
        assert not next_step(error)
