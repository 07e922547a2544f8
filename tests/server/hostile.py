"""Requests made to do harm, from the server's OpenAPI description: what is right mixed with what is not.

Rules
- Everything comes from one seeded random source, so that a seed is a run.
- Names, ids and keys come from a few, partly from earlier replies: requests must meet each other.
- Most of a request is as described, so that it gets far; somewhere in it something seldom is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from consul_coord.server.wire import Request

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

Schema = dict[str, Any]

NAMES: Final = ("a", "a/b", "a/", "node1", "n2", "c1", "serfHealth", "web", "any", "passing", "q", "")
VALUES: Final = {
    "Verb": (
        *("set", "cas", "lock", "unlock", "get", "get-tree", "delete", "delete-tree", "delete-cas"),
        *("check-index", "check-session", "check-not-exists", "SET"),
    ),
    "Status": ("passing", "warning", "critical", ""),
    "Behavior": ("release", "delete", "", "bogus"),
    "TTL": ("10s", "0s", "", "1ns", "86400s", "10", 30, 1e300),
    "LockDelay": ("0s", "1s", "61s", 15, 10**12, -1, "x", 1e300, "9" * 5_000 + "s"),
    "Address": ("10.0.0.1", ""),
    "wait": ("0s", "9" * 5_000 + "s", "1s", "1s", "3s", "-1s", "601s", "5", "1h1h"),
    "index": ("0", "1", "1", "9", "40", "40", "18446744073709551615", "18446744073709551616", "-1", "1e3"),
    "max_stale": ("0s", "1s", "x"),
    "ns": ("", "", "", "other"),
    "flags": ("0", "7", "18446744073709551615", "-1"),
    "dc": ("dc1", "dc1", "dc1", "dc9", ""),
    "cas": ("0", "9", "12"),
    "Datacenter": ("dc1", ""),
}
"""What a field or parameter takes most of the time; short so that it also comes to something."""
ODD_TEXTS: Final = (
    "",
    "\x00",
    "\x7f",
    "%",
    "%zz",
    "é",
    "\u200b",
    "..",
    "//",
    "/",
    "'\"<>&",
    "x" * 3_000,
    "-1",
)
ODD_RAW: Final = (
    "%",
    "%zz",
    "%00",
    "%2F%2F",
    "%2e%2e",
    "%ff%fe",
    "?",
    "&=&",
    "+",
    "#",
    "\xff",
    "%F0%9F%92%A9",
)
ODD_VALUES: Final[tuple[object, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**64,
    1e400,
    -1e-400,
    0.5,
    [],
    {},
    [[]],
    [None],
    {"": None},
)
ODD_BODIES: Final = (
    b"",
    b"null",
    b"[",
    b'{"',
    b"\xff\xfe",
    b"[" * 5_000,
    b'{"LockDelay":1e400}',
    b"{}" * 3,
    b"1e",
    b"NaN",
    b'"\\ud800"',
)
OFTEN: Final = ("/v1/kv/", "/v1/txn", "/v1/session/")
METHODS: Final = ("GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "get", "")
HEADERS: Final = ("x-consul-token", "authorization", "content-type", "accept-encoding", "user-agent")


class Attacker:
    """Makes requests; tell it the ids that replies hold."""

    def __init__(self, description: Schema, random: Random) -> None:
        self._operations = [
            (path, method.upper(), operation)
            for path, methods in description["paths"].items()
            for method, operation in methods.items()
            if method != "parameters"
            for _ in range(4 if path.startswith(OFTEN) else 1)
        ]
        self._random = random
        self._makers: dict[str, Callable[[Schema, str], object]] = {
            "object": lambda schema, _: self._object(schema),
            "array": self._items,
            "boolean": lambda _schema, _name: self._one_in(2),
            "integer": lambda schema, _: self._number(schema),
            "string": lambda _, name: self._text(name),
        }
        self.ids: list[str] = ["00000000-0000-0000-0000-000000000000"]

    def request(self) -> Request:
        """Return the next request."""
        path, method, operation = self._random.choice(self._operations)
        path = path.replace("{name}", self._path())
        query = "&".join(self._pair(each["name"]) for each in operation["parameters"] if self._one_in(6))
        body = self._body(operation.get("requestBody", {}).get("content"))
        if self._one_in(20):
            method = self._random.choice(METHODS)
        headers = {name: self._text(name) for name in HEADERS if self._one_in(40)}
        length = None if self._one_in(20) else len(body)
        return Request(method, path, query, body, headers, length, "127.0.0.1")

    def moment(self) -> bool:
        """Tell whether it is time for time to pass."""
        return self._one_in(20)

    def _one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def _path(self) -> str:
        if self._one_in(4):
            return self._random.choice(ODD_RAW) + self._random.choice(NAMES)
        return quote(self._text(""), safe="/")

    def _pair(self, name: str) -> str:
        if self._one_in(8):
            return self._random.choice(ODD_RAW)
        return f"{name}={quote(str(self._text(name)))}"

    def _text(self, name: str) -> str:
        kind = self._random.randrange(12)
        if kind == 0:
            return self._random.choice(ODD_TEXTS)
        if name in VALUES and kind < 9:
            return str(self._random.choice(VALUES[name]))
        return self._random.choice(self.ids if kind < 6 else NAMES)

    def _body(self, content: Schema | None) -> bytes:
        kind = self._random.randrange(10)
        if content is None and kind:
            return b""
        if kind == 0:
            return self._random.choice(ODD_BODIES)
        if content is None or "application/json" not in content:
            return self._random.randbytes(self._random.randrange(8))
        sent = json.dumps(self._value(content["application/json"]["schema"], ""), ensure_ascii=False)
        cut = self._random.randrange(len(sent) + 1) if self._one_in(15) else len(sent)
        return sent[:cut].encode("utf-8", "surrogatepass")

    def _value(self, schema: Schema, name: str) -> object:
        if self._one_in(60):
            return self._random.choice(ODD_VALUES)
        if name in VALUES and not self._one_in(4):
            return self._random.choice(VALUES[name])
        kind: str = schema.get("type", "string")
        return self._makers[kind](schema, name)

    def _number(self, schema: Schema) -> int:
        return self._random.choice(
            (0, 1, self._random.randrange(60), schema["maximum"], schema["minimum"] - 1)
        )

    def _items(self, schema: Schema, name: str) -> list[object]:
        return [self._value(schema["items"], name) for _ in range(self._random.randrange(4))]

    def _object(self, schema: Schema) -> dict[str, object]:
        properties: Schema = schema.get("properties", {})
        shown = {name: self._value(each, name) for name, each in properties.items() if self._one_in(2)}
        if self._one_in(25):
            shown[self._random.choice(("unknown", "", "\x00", "ID", "id"))] = self._random.choice(ODD_VALUES)
        return shown
