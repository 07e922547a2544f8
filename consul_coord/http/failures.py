"""From a refusing reply to the error that says what it means and what to do.

Rules
- Text is matched by what it contains, never by equality: a follower prefixes the leader's words with ``rpc
  error making call:``, once or twice.
- Consul answers 500 for both its own troubles and a caller's mistakes, so there the text decides. Only
  unknown text means that the server failed and a write may or may not have been applied.
- A message names method, path, status, Consul's own words and the way out; never the token.
- Every status gives an error, whatever the body.
- An error that is kept is ``bare``, and what is raised of it is a copy: ``again``.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, TypeVar
from urllib.parse import unquote

from consul_coord.errors import (
    BODY_LIMIT,
    AcquireCancelled,
    BrokenReply,
    CertificateRefused,
    ClientClosed,
    ConnectFailed,
    ConsulCoordError,
    DecodeError,
    InvalidRequest,
    NodeNotRegistered,
    NoLeader,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    RateLimited,
    RequestTimeout,
    ResponseError,
    ServerError,
    SessionCheckFailed,
    SessionNotFound,
    TransportError,
    TxnFailed,
)
from consul_coord.http.messages import Retry
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from consul_coord.http.messages import Request, Response

E = TypeVar("E", bound=BaseException)

NO_CONNECTION = "no connection"
NO_REPLY = "no whole reply"
NOT_ANSWERED = "has not answered"
NO_TLS = "that port does not speak TLS: use http://, or the agent's https port"
NO_LEADER = "Consul's servers have no leader"
_NEXT_STEP = (
    ". Is an agent running there? If not, start one, or set the address of another (CONSUL_HTTP_ADDR)"
)
_OTHER_AUTHORITY = ". Set ca_cert (CONSUL_CACERT) to the authority that signed the agent's certificate"
_OTHER_NAME = ". Set server_name (CONSUL_TLS_SERVER_NAME) to a name in the agent's certificate"
_NO_CERTIFICATE = (
    ". Set client_cert and client_key (CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY): the agent asks for them"
)
_ASKED_FOR = dict.fromkeys(("alert bad certificate", "alert certificate required"), _NO_CERTIFICATE)
_STEPS_BY_WORDS = {
    CertificateRefused: {
        "issuer certificate": _OTHER_AUTHORITY,
        "self-signed": _OTHER_AUTHORITY,
        "self signed": _OTHER_AUTHORITY,
        "mismatch": _OTHER_NAME,
    },
    BrokenReply: _ASKED_FOR
    | {"not HTTP/1": ". Does the address name the agent's HTTP port, which is 8500 by default?"},
    ConnectFailed: _ASKED_FOR | {" alert ": "", NO_TLS: "", "": _NEXT_STEP},
}
"""By a part of OpenSSL's words, or of the transport's."""
_NO_REPLY_STEP = ". `consul-coord doctor` shows whether the agent hangs, or Consul's servers have no leader"
_NEEDS_NO_LEADER = "/v1/status/"
_NO_PATH = "no path to datacenter"
_SHOWN = 200
_CREATE = "/v1/session/create"
_RENEW = "/v1/session/renew/"
_TTL_RANGE = re.compile(r"between \[([^=\]]+)=([^\]]+)\]")
_QUOTED_SESSION = re.compile(r'invalid session "([^"]*)"', re.IGNORECASE)


def printable(text: str) -> str:
    """Return a text of somebody else's in a form that may be shown in one line."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Refusal(Value):
    """A reply that is not an answer, with the request that it refuses."""

    request: Request
    status: int
    text: str

    def message(self, advice: str) -> str:
        """Return what was asked, what came, and the way out."""
        shown = printable(self.text[:_SHOWN])
        words = f": {shown}" if shown else ""
        return f"{self.request.method} {self.request.path}: {self.status}{words} ({advice})"

    def error(self, kind: Callable[..., ResponseError], advice: str) -> ResponseError:
        """Return an error of a kind, with the fields that all kinds have."""
        method, path = self.request.method, self.request.path
        return kind(self.message(advice), method=method, path=path, status=self.status, body=self.text)


Build: TypeAlias = "Callable[[Refusal], ConsulCoordError]"


def _plain(kind: type[ResponseError], advice: str) -> Build:
    return lambda refusal: refusal.error(kind, advice)


def _invalid(advice: str) -> Build:
    return _plain(InvalidRequest, advice)


def _check_failed(advice: str) -> Build:
    return lambda refusal: SessionCheckFailed(refusal.message(advice))


def _no_session(refusal: Refusal) -> ConsulCoordError:
    quoted = _QUOTED_SESSION.search(refusal.text)
    advice = "the session does not exist, or no longer: create a new one"
    return refusal.error(partial(SessionNotFound, session=quoted[1] if quoted else ""), advice)


def _bad_ttl(refusal: Refusal) -> ConsulCoordError:
    allowed = _TTL_RANGE.search(refusal.text)
    bounds = (
        f"the servers take {allowed[1]} to {allowed[2]}" if allowed else "the servers do not take this TTL"
    )
    advice = f"{bounds}; their session_ttl_min sets the minimum: choose another ttl"
    return refusal.error(InvalidRequest, advice)


# Why a 403 may have nothing to do with the token's rules.
_NOT_A_RULE = (
    (
        "must be bootstrapped",
        "nobody has bootstrapped the servers' ACLs, so they know no token: run `consul acl bootstrap`",
    ),
    ("acl not found", "the servers do not know this token: it is wrong, deleted, or of another datacenter"),
    ("endpoint is blocked", "this agent's http_config blocks the call, whatever the token"),
    ("access is restricted", "this agent's http_config takes writes from elsewhere only, whatever the token"),
)


def blocked_by(text: str) -> str | None:
    """Return what a 403 of this text means when no rule of the token's would help, else None."""
    words = text.lower()
    return next((advice for fragment, advice in _NOT_A_RULE if fragment in words), None)


def _denied(refusal: Refusal) -> ConsulCoordError:
    needed = refusal.request.needed
    lacking = f"the token needs {', '.join(needed)}" if needed else "the token lacks a permission"
    return refusal.error(partial(PermissionDenied, needed=needed), blocked_by(refusal.text) or lacking)


def _failed(what: str) -> Build:
    def build(refusal: Refusal) -> ConsulCoordError:
        reads = refusal.request.retry is Retry.READ
        advice = "try again" if reads else "a write may have been applied: read before repeating it"
        return refusal.error(ServerError, f"{what}; {advice}")

    return build


def _missing(refusal: Refusal) -> ConsulCoordError:
    path = refusal.request.path
    if not path.startswith(_RENEW):
        advice = (
            "there is no such thing, or no Consul agent at this address, perhaps because of a path like /v1"
        )
        return refusal.error(NotFound, advice)
    session = unquote(path.removeprefix(_RENEW))
    advice = "the session has ended, and what it held is lost: create a new one"
    return refusal.error(partial(SessionNotFound, session=session), advice)


def _no_node(refusal: Refusal) -> ConsulCoordError:
    if refusal.request.path == _CREATE:
        advice = (
            "the session's node is not in this datacenter's catalog: an agent puts its own node back within "
            "a minute, another node has to be registered"
        )
        return refusal.error(NodeNotRegistered, advice)
    return refusal.error(InvalidRequest, "the node is not registered in this datacenter: register it first")


_MALFORMED_ID = _invalid("this is not the id of a session: use the one that create returned")
_RATE_LIMITED = _plain(RateLimited, "there are too many requests at present: try again later")

# The first fragment found in the text, in lower case, decides.
_BY_TEXT: dict[str, Build] = {
    "no cluster leader": _plain(NoLeader, "it passes when the servers have elected a leader"),
    # 503 where only the leader could have done it; it is refused before anything is done.
    "rate limit exceeded": _RATE_LIMITED,
    "rpc error getting client": _plain(ServerError, "the agent reaches no server at present: try again"),
    "rpc error making call: eof": _failed("the server went away in between"),
    "invalid session ttl": _bad_ttl,
    "session ttl": _invalid("the TTL has to be a duration with a unit"),
    'invalid session "': _no_session,
    "invalid session": _MALFORMED_ID,
    "failed session lookup": _MALFORMED_ID,
    "failed prepared query lookup": _invalid(
        "this is not the id of a query: use the one that create returned"
    ),
    "cannot modify non-existent prepared query": _plain(
        NotFound, "there is no such query, or an earlier try of this request has deleted it"
    ),
    "missing session": _invalid("name a session"),
    "missing node registration": _no_node,
    "is in critical state": _check_failed(
        "a session needs its health checks passing or warning: pass it first"
    ),
    "missing check": _check_failed(
        "the session's node has no such health check: register it, or leave it out"
    ),
    "cross datacenter lock": _invalid("a session in another datacenter is made through a server agent"),
    "invalid behavior": _invalid("use 'release' or 'delete'"),
    "strconv.parseuint": _invalid("flags, cas and index are unsigned 64-bit numbers"),
    "invalid key name": _invalid("every release takes letters, digits and ,_./-?&= in keys"),
    "does not have associated ttl": _plain(NotFound, "register a TTL check with this id at this agent first"),
    _NO_PATH: _plain(ServerError, "the datacenter is unknown, or out of reach at present"),
    "aliases an existing query name": _invalid("choose another name, or delete that query"),
    "invalid prepared query": _invalid("give the query a name or a session"),
    "must provide": _invalid("the request lacks something that Consul requires"),
}

_BY_STATUS: dict[int, Build] = {
    400: _invalid("Consul does not understand this, or not in this version or edition"),
    401: _invalid("something before the agent wants HTTP credentials: set http_auth"),
    403: _denied,
    404: _missing,
    405: _invalid("this agent has no such call: it is of another version, or no Consul agent"),
    413: _plain(PayloadTooLarge, "send less: the agent takes 512 KiB unless its limits are raised"),
    429: _RATE_LIMITED,
    501: _plain(ServerError, "what answers does not have this call: is it a Consul agent?"),
    503: _plain(ServerError, "it refuses at present: try again later"),
}
_BY_TEXT_OF_400: dict[str, Build] = {
    "http request to an https server": _invalid("that port speaks TLS: use https://"),
} | {
    f"{option}s are a consul enterprise feature": _invalid(
        f"leave {option} unset: this Consul has none, they belong to the Enterprise edition"
    )
    for option in ("namespace", "partition")
}
_REDIRECT = _invalid("redirects are not followed: give the agent's own address, and a key without cleaning")
_REFUSED = _invalid("the request was refused, perhaps by something in between")
_FAILED = _failed("the server failed")
_STRANGE = _plain(ResponseError, "this is no status that Consul uses: is something else answering?")


def failure(request: Request, response: Response) -> ConsulCoordError:
    """Return the error for a reply whose status the call does not accept."""
    text = response.body[: 4 * BODY_LIMIT].decode(errors="replace").strip()
    refusal = Refusal(request, response.status, text)
    return _build(refusal)(refusal)


def _build(refusal: Refusal) -> Build:
    text = refusal.text.lower()
    if refusal.status >= 500:  # noqa: PLR2004
        known = next((build for fragment, build in _BY_TEXT.items() if fragment in text), _FAILED)
        return _BY_STATUS.get(refusal.status, _FAILED) if known is _FAILED else known
    if refusal.status == 400:  # noqa: PLR2004
        unknown = _BY_STATUS[refusal.status]
        return next((build for fragment, build in _BY_TEXT_OF_400.items() if fragment in text), unknown)
    by_class = {3: _REDIRECT, 4: _REFUSED}
    return _BY_STATUS.get(refusal.status) or by_class.get(refusal.status // 100, _STRANGE)


def unknown_datacenter(
    request: Request, error: ServerError, name: str, known: Collection[str]
) -> ResponseError:
    """Return the error for a datacenter that the agent does not know."""
    listed = printable(", ".join(map(repr, known))[:_SHOWN]) or "none"
    advice = (
        f"the agent knows no datacenter {name!r}, only {listed}: correct the datacenter, or leave it out for "
        "the agent's own"
    )
    return Refusal(request, error.status, error.body).error(InvalidRequest, advice)


def retryable(error: BaseException) -> bool:
    """Return whether the same request may succeed later: transport or servers failed, or are overloaded."""
    if isinstance(error, CertificateRefused):
        return False
    return isinstance(error, TransportError | RateLimited | NoLeader | ServerError)


def is_no_path(error: BaseException) -> TypeGuard[ServerError]:
    """Return whether an agent refused because it knows no way to the datacenter that was asked for."""
    return isinstance(error, ServerError) and _NO_PATH in error.body.lower()


def outcome_unknown(error: BaseException) -> bool:
    """Return whether a write that ended with this error may have been applied, or may be later.

    True for most 5xx, for a reply that can't be understood, for what the transport says so, and for whatever
    ended the call from outside; false for a clear refusal.
    """
    if isinstance(error, TransportError):
        return error.outcome_unknown
    if not isinstance(error, ConsulCoordError):
        return True
    if isinstance(error, NodeNotRegistered):
        return False
    unknown = NoLeader | ServerError | DecodeError | AcquireCancelled | ClientClosed
    return isinstance(error, unknown) or type(error) is ResponseError


def bare(error: E) -> E:
    """Return an error without frames, so that it may be kept.

    A traceback refers to frames, and so to all that they had. If one of them keeps the error, that is a
    circle, and a hold that its user drops may live in it until the garbage collector comes.
    """
    inner: BaseException | None = error
    while inner is not None:
        inner.__traceback__ = inner.__context__ = None
        inner = inner.__cause__
    return error


def again(kept: E) -> E:
    """Return a copy of a kept error, to be raised: what keeps the error is in the traceback of that alone."""
    error = copy.copy(kept)
    error.__cause__ = kept.__cause__
    return error


def next_step(error: BaseException | None) -> str:
    """Return what to do when nobody has answered, as an end for a message that does not have it.

    Empty for other errors. Errors have it only where they leave the client, because the log repeats them for
    as long as an agent is away.
    """
    step, text = _step(error), str(error)
    return "" if text.endswith(step) else step


def _step(error: BaseException | None) -> str:
    text = str(error)
    for kind, steps in _STEPS_BY_WORDS.items():
        if type(error) is kind:
            return next((step for words, step in steps.items() if words in text), "")
    if not isinstance(error, RequestTimeout) or NO_LEADER in text:
        return ""
    if NO_CONNECTION in text:
        return _NEXT_STEP
    is_about_servers = not error.path.startswith(_NEEDS_NO_LEADER)
    return _NO_REPLY_STEP if is_about_servers and (NO_REPLY in text or NOT_ANSWERED in text) else ""


def is_consuls(error: SessionNotFound) -> bool:
    """Return whether these are Consul's own words, and not the page of something before the agent."""
    return "session id" in error.body.lower()


def raise_if_denied(key: str, error: TxnFailed) -> None:
    """Raise PermissionDenied, naming the rule that is missing, if that is why ``key`` was not written.

    A ``key`` that ends with a slash stands for all keys below it.
    """
    denied = next((failure for failure in error.failures if failure.kind == "denied"), None)
    if denied is None:
        return
    place = f'the prefix "{key}"' if key.endswith("/") else f'"{key}"'
    needed = (f"key:write on {place}",)
    message = f"no permission to lock or unlock {key!r}: the token needs {needed[0]}"
    raise PermissionDenied(
        message, needed=needed, method="PUT", path="/v1/txn", status=409, body=denied.message
    ) from error
