"""The purpose of a request, known from its form alone, so that faults, checks and traces can name it.

Rules
- A transaction is known by its verbs, any other request by method, path and parameters.
- A request that no row names is ``locking`` if it locks anything, so that it is judged, and ``other``
  otherwise. Nothing here needs to know each request.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from consul_coord.recipes.election.notes import heir_key
from consul_coord.recipes.once.record import key_of

if TYPE_CHECKING:
    from consul_coord.http.messages import Request

RECORD = "record"
"""The writing of a job's record; not among ``SHAPES``, so that runs without jobs are drawn as they were."""
GUARDED = "done/"
"""Prefix of the keys that are written under a hold's guard."""

_BY_VERBS: dict[tuple[str, ...], str] = {
    ("check-not-exists", "lock", "get-tree"): "barge",
    ("lock",): "barge",
    ("lock", "lock"): "several",
    ("lock", "get", "get-tree"): "join",
    ("lock", "get-tree"): "join",
    ("lock", "check-index", "get", "get-tree"): "join",
    ("lock", "check-index", "get-tree"): "join",
    ("lock", "check-not-exists", "get", "get-tree"): "join",
    ("lock", "check-not-exists", "get-tree"): "join",
    ("get", "get-tree"): "look",
    ("get-tree",): "look",
    ("get", "get"): "glance",
    ("check-index", "lock", "delete"): "take",
    ("check-index", "check-not-exists", "lock", "delete", "delete", "delete", "set"): "elect",
    ("check-index", "check-index", "lock", "delete", "delete", "delete", "set"): "elect",
    ("check-session", "delete"): "adopt",
    ("check-index", "unlock"): "unlock",
    ("check-index", "unlock", "check-index", "unlock"): "unlock",
    ("check-index", "lock"): "put",
    ("check-session", "check-index", "set"): "guarded",
    ("check-session", "set"): "note",
    ("check-session", "check-index", "set", "cas", "set"): "name-heir",
    ("check-index", "cas", "lock"): "slot-take",
    ("check-index", "cas"): "slot-prune",
    ("cas", "lock"): "slot-take-at-once",
    ("check-session", "cas", "delete-cas", "get-tree"): "slot-leave",
    ("check-session", "get", "delete-cas"): "slot-withdraw",
    ("delete-cas",): "withdraw",
}
_BY_PATH = (
    ("PUT", "/v1/session/create", "create"),
    ("PUT", "/v1/session/renew/", "renew"),
    ("PUT", "/v1/session/destroy/", "destroy"),
    ("GET", "/v1/session/info/", "watch-session"),
    ("DELETE", "/v1/kv/", "delete"),
)
_BY_PARAM = (
    ("GET", "index", "watch"),
    ("GET", "recurse", "list"),
    ("PUT", "acquire", "acquire"),
    ("PUT", "release", "release"),
    ("PUT", "cas", "put-cas"),
)
_KV = "/v1/kv/"

SHAPES = (
    *dict.fromkeys((*_BY_VERBS.values(), *(row[2] for row in (*_BY_PATH, *_BY_PARAM)))),
    "read",
    "other",
)
"""The targets of faults."""

LOCKING = frozenset(
    {
        "locking",
        "barge",
        "several",
        "take",
        "elect",
        "adopt",
        "acquire",
        "put",
        "slot-take",
        "slot-prune",
        "slot-take-at-once",
        "slot-leave",
        "put-cas",
    }
)
"""Those that may change who holds what."""
TIMELY = LOCKING | {"join", "create", "renew"}
"""Those whose answer may come too late to be of use."""
LOOKS = frozenset({"look", "glance", "watch", "watch-session", "list", "read", "create", "renew"})
"""Those that depend on nothing that was read before."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The purpose of a request, and the key or session that it names first."""

    name: str
    about: str
    session: str = ""
    others: tuple[str, ...] = ()
    """The other keys that it locks, for one that takes several."""

    @property
    def locks(self) -> tuple[str, ...]:
        """The keys that it may lock."""
        return (self.about, *self.others)

    def __str__(self) -> str:
        return f"{self.name} {self.about}"


def shape_of(request: Request) -> Shape:
    """Return what a request is for."""
    if request.path == "/v1/txn":
        return _transaction(json.loads(request.body or b"[]"))
    for method, path, name in _BY_PATH:
        if request.method == method and request.path.startswith(path):
            return Shape(name, request.path.removeprefix(path))
    params = dict(request.params)
    if request.path.startswith(_KV):
        key = request.path.removeprefix(_KV)
        for method, param, name in _BY_PARAM:
            if request.method == method and param in params:
                session = params[param] if method == "PUT" else ""
                return Shape(name, key, session)
        if request.method == "GET":
            return Shape("read", key)
    return Shape("other", request.path)


def only_reads(request: Request) -> bool:
    """Return whether a request changes nothing."""
    if request.path == "/v1/txn":
        return all(op["KV"]["Verb"].startswith(("get", "check")) for op in json.loads(request.body or b"[]"))
    return request.method == "GET"


def deleted_by(request: Request) -> list[str]:
    """Return the keys that a request deletes, whoever has them."""
    if request.method == "DELETE" and request.path.startswith(_KV):
        return [] if "cas" in dict(request.params) else [request.path.removeprefix(_KV)]
    ops: list[dict[str, dict[str, Any]]] = []
    if request.path == "/v1/txn":
        ops = json.loads(request.body or b"[]")
    return [op["KV"]["Key"] for op in ops if op["KV"]["Verb"] == "delete"]


def _transaction(ops: list[dict[str, dict[str, Any]]]) -> Shape:
    fields = _without_removals([op["KV"] for op in ops])
    last = fields[-1]["Key"]
    is_record = last == key_of(fields[0]["Key"].partition("/.")[0])
    if is_record and fields[-1]["Verb"] == "get-tree":
        fields = fields[:-1]  # what a grant reads besides
    verbs = tuple(op["Verb"] for op in fields)
    name = _BY_VERBS.get(verbs) or _BY_VERBS.get(_of_one_slot(verbs))
    name = name or ("locking" if "lock" in verbs else "other")
    session = next((op["Session"] for op in fields if op.get("Session")), "")
    if is_record and verbs[-1] == "set":
        return Shape(RECORD, last, session)
    if last.startswith(GUARDED):
        return Shape("guarded", last, session)
    if name == "guarded":  # two notes have the same form
        name = "name-heir" if last == heir_key(fields[0]["Key"]) else "note"
    # What a barge checks is its contender; what it is about is the key that it locks.
    about = next((op["Key"] for op in fields if op["Verb"] in {"lock", "delete-cas"}), fields[0]["Key"])
    others = tuple(op["Key"] for op in fields[1:]) if name == "several" else ()
    return Shape(name, about, session, others)


def _of_one_slot(verbs: tuple[str, ...]) -> tuple[str, ...]:
    """Return what the verbs would be if several slots that are taken or given back were one."""
    at_once = {"cas", "delete-cas"} & set(verbs)
    return tuple(verb for verb, _ in groupby(verbs)) if at_once else verbs


def _without_removals(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what a take removes dead holders with: their keys are locked and deleted first."""
    at = 0
    while [op["Verb"] for op in fields[at : at + 2]] == ["lock", "delete"]:
        at += 2
    return fields[at:] or fields
