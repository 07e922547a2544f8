"""A key, an id, a value or a setting reaches exactly what it names: no other key, header or request.

What is sent is read back by a parser of its own, as a server would.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consul_coord.config import Settings
from consul_coord.errors import ConfigError, InvalidArgument
from consul_coord.http.endpoints import catalog, kv, session
from consul_coord.http.transport.wire import Outgoing
from consul_coord.models import SessionSpec, TxnOp
from tests.wire.catalogue import SID

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Request

pytestmark = pytest.mark.arbitrary_secrets

EVIL: Final = (
    *("a\r\nX-Evil: 1", "a\n\nDELETE /v1/kv/?recurse HTTP/1.1", "a%2F..%2Fb", "../../v1/agent/leave"),
    *("a/../b", "a?recurse", "a&cas=0", "a#b", "a;b", "a b", "%00", "%", "a\x00b", "\ud800", "a\u2028b", "?"),
    *("/", "//a", ".", "a%3Frecurse", "\u202ea", "a\tb", "é/ü", "a+b", "a=b&c", '"', "a\\b", "*", "{}", " 1"),
)
_evil = st.sampled_from(EVIL)
_texts = _evil | st.text(max_size=12) | st.lists(_evil, max_size=3).map("".join)
NAMED: Final[dict[str, tuple[str, Callable[[str], Request]]]] = {
    "get": ("/v1/kv/", lambda name: kv.get(name).request),
    "list": ("/v1/kv/", lambda name: kv.list_pairs(name).request),
    "put": ("/v1/kv/", lambda name: kv.put(name, b"v", cas=3).request),
    "acquire": ("/v1/kv/", lambda name: kv.acquire(name, SID, value=b"v").request),
    "delete": ("/v1/kv/", lambda name: kv.delete(name).request),
    "delete_tree": ("/v1/kv/", lambda name: kv.delete_tree(name).request),
    "renew": ("/v1/session/renew/", lambda name: session.renew(name).request),
    "destroy": ("/v1/session/destroy/", lambda name: session.destroy(name).request),
    "node": ("/v1/catalog/node/", lambda name: catalog.node(name).request),
}
_HEADERS: Final = {"Host", "User-Agent", "Accept-Encoding", "X-Consul-Token", "Content-Length"}


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as a server reads it."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes


def sent(request: Request, **settings: str) -> Sent:
    """Return what a server would make of the bytes that are sent; there must be one request and no more."""
    made = Outgoing(Settings.resolve(token="t0ken", environ={}, **settings))  # type: ignore[arg-type]
    head, _, body = made.encode(request, 0.0).partition(b"\r\n\r\n")
    line, *lines = head.decode("ascii").split("\r\n")
    method, target, version = line.split(" ")
    assert version == "HTTP/1.1"
    headers = dict(each.split(": ", 1) for each in lines)
    assert len(headers) == len(lines)
    assert set(headers) <= _HEADERS
    assert len(body) == int(headers.get("Content-Length", "0"))
    path, _, query = target.partition("?")
    return Sent(method, path, parse_qsl(query, keep_blank_values=True), headers, body)


@pytest.mark.parametrize("kind", NAMED)
@given(name=_texts)
@example(name="a/%2e%2e/b")
def test_a_name_stays_where_it_belongs(kind: str, name: str) -> None:
    root, make = NAMED[kind]
    expected = sent(make("plain"))
    try:
        request = make(name)
    except InvalidArgument:
        return
    got = sent(request)
    assert unquote(got.path, errors="strict") == root + name
    assert got.path.count("/") == (root + name).count("/")
    assert not {".", ".."} & set(unquote(got.path).split("/"))
    assert (got.method, got.query, got.body) == (expected.method, expected.query, expected.body)
    assert got.headers == expected.headers


@pytest.mark.parametrize("name", EVIL)
def test_what_consul_would_read_otherwise_is_refused(name: str) -> None:
    harmless = name.isprintable() and "/" not in name and name not in {".", ".."}
    if not harmless and any(part in {"", ".", ".."} or not part.isprintable() for part in name.split("/")):
        with pytest.raises(InvalidArgument):
            kv.get(name)
    else:
        assert unquote(sent(kv.get(name).request).path) == f"/v1/kv/{name}"


@given(key=_texts, value=st.binary(max_size=30), other=_texts)
def test_a_transaction_says_what_it_was_given(key: str, value: bytes, other: str) -> None:
    try:
        request = kv.txn(TxnOp.lock(key, other, value=value)).request
    except InvalidArgument:
        return
    (operation,) = json.loads(sent(request).body)
    told = operation["KV"]
    assert (told["Verb"], told["Key"], told["Session"]) == ("lock", key, other)
    assert base64.b64decode(told["Value"]) == value


@given(name=_texts)
def test_a_session_is_named_as_given(name: str) -> None:
    try:
        request = session.create(SessionSpec(name=name)).request
    except InvalidArgument:
        return
    got = sent(request)
    assert (got.path, got.query) == ("/v1/session/create", [])
    assert json.loads(got.body)["Name"] == name


@pytest.mark.parametrize("setting", ["datacenter", "namespace", "partition", "token", "address"])
@given(text=_texts)
def test_a_setting_becomes_one_parameter_or_header(setting: str, text: str) -> None:
    settings = {"token": "t0ken"} | {setting: text}
    try:
        made = Outgoing(Settings.resolve(environ={}, **settings))  # type: ignore[arg-type]
    except ConfigError:
        return
    head, _, rest = made.encode(kv.get("k").request, 0.0).partition(b"\r\n\r\n")
    line, *lines = head.decode("ascii").split("\r\n")
    assert rest == b""
    assert line.count(" ") == 2
    assert line.partition("?")[0].endswith("/v1/kv/k") or line.endswith("/v1/kv/k HTTP/1.1")
    assert {each.partition(":")[0] for each in lines} <= _HEADERS
    assert len(parse_qsl(line.split(" ")[1].partition("?")[2], keep_blank_values=True)) <= 1
