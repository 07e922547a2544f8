"""Keys: writes in all forms, indexes, reads, names."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

import pytest

from tests.conformance.target import UNKNOWN, Target

SAFE_NAME = re.compile(r"[a-zA-Z0-9,_./\-?&=]+")


def test_the_form_of_an_entry(target: Target) -> None:
    key, session = target.key(), target.session()
    assert target.put(f"/v1/kv/{key}?flags=18446744073709551615", b"v").json is True
    assert list(target.entry(key)) == ["LockIndex", "Key", "Flags", "Value", "CreateIndex", "ModifyIndex"]
    assert target.put(f"/v1/kv/{key}?acquire={session}").json is True
    shown = target.entry(key)
    assert list(shown) == ["LockIndex", "Key", "Flags", "Value", "Session", "CreateIndex", "ModifyIndex"]
    assert (shown["Value"], shown["Flags"], shown["Session"]) == (None, 0, session)


def test_a_write_that_changes_nothing_keeps_the_index(target: Target) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}?flags=3", b"v")
    before = target.entry(key)
    target.put(f"/v1/kv/{key}?flags=3", b"v")
    assert target.entry(key) == before
    assert target.put(f"/v1/kv/{key}?flags=3&cas={before['ModifyIndex']}", b"v").json is True
    assert target.entry(key) == before
    target.put(f"/v1/kv/{key}", b"v")
    assert target.entry(key)["Flags"] == 0
    assert target.entry(key)["ModifyIndex"] > before["ModifyIndex"]


def test_cas(target: Target) -> None:
    key = target.key()
    assert target.put(f"/v1/kv/{key}?cas=7", b"v").json is False
    assert target.put(f"/v1/kv/{key}?cas=0", b"v").json is True
    assert target.put(f"/v1/kv/{key}?cas=0", b"w").json is False
    index = target.entry(key)["ModifyIndex"]
    assert target.put(f"/v1/kv/{key}?cas={index}", b"w").json is True
    assert target.put(f"/v1/kv/{key}?cas={index}", b"x").json is False
    assert target.entry(key)["Value"] == "dw=="


def test_acquire_and_release(target: Target) -> None:
    key, first, second = target.key(), target.session(), target.session()
    assert target.put(f"/v1/kv/{key}?acquire={first}&flags=5", b"1").json is True
    before = target.entry(key)
    assert (before["LockIndex"], before["Session"], before["Flags"]) == (1, first, 5)
    assert target.put(f"/v1/kv/{key}?acquire={first}&flags=5", b"1").json is True
    assert target.put(f"/v1/kv/{key}?acquire={second}", b"2").json is False
    assert target.put(f"/v1/kv/{key}?release={second}", b"2").json is False
    assert target.entry(key) == before
    assert target.put(f"/v1/kv/{key}?acquire={first}", b"1+").json is True
    assert target.entry(key)["LockIndex"] == 1
    assert target.put(f"/v1/kv/{key}?release={first}").json is True
    freed = target.entry(key)
    assert "Session" not in freed
    assert (freed["LockIndex"], freed["Value"], freed["Flags"]) == (1, None, 0)
    assert target.put(f"/v1/kv/{key}?release={first}").json is False
    assert target.put(f"/v1/kv/{key}?acquire={second}", b"2").json is True
    assert target.entry(key)["LockIndex"] == 2


@pytest.mark.parametrize("form", ["plain", "cas"])
def test_anyone_may_write_a_locked_key(target: Target, form: str) -> None:
    key, session = target.key(), target.session()
    target.put(f"/v1/kv/{key}?acquire={session}&flags=9", b"v")
    query = "" if form == "plain" else f"?cas={target.entry(key)['ModifyIndex']}"
    assert target.put(f"/v1/kv/{key}{query}", b"w").json is True
    shown = target.entry(key)
    assert (shown["Session"], shown["LockIndex"], shown["Flags"]) == (session, 0, 0)
    target.put(f"/v1/kv/{key}?release={session}")
    target.put(f"/v1/kv/{key}?acquire={session}")
    assert target.entry(key)["LockIndex"] == 1


def test_deleting_a_locked_key_frees_it_without_delay(target: Target) -> None:
    key, first, second = target.key(), target.session(), target.session()
    target.put(f"/v1/kv/{key}?acquire={first}")
    assert target.delete(f"/v1/kv/{key}").json is True
    assert target.info(first)
    assert target.put(f"/v1/kv/{key}?acquire={second}").json is True
    assert target.entry(key)["LockIndex"] == 1


def test_the_holder_is_compared_as_text(target: Target) -> None:
    session, held, free = target.session(), target.key("held"), target.key("free")
    while session.upper() == session:  # one id in some millions has no letter
        session = target.session()
    target.put(f"/v1/kv/{held}?acquire={session}")
    assert target.put(f"/v1/kv/{held}?acquire={session.upper()}").json is False
    assert target.put(f"/v1/kv/{held}?release={session.upper()}").json is False
    assert target.put(f"/v1/kv/{free}?acquire={session.upper()}").json is True
    assert target.entry(free)["Session"] == session.upper()
    target.put(f"/v1/session/destroy/{session}")
    assert "Session" not in target.entry(free)


REFUSED = [
    ("?flags=abc", 500, 'strconv.ParseUint: parsing "abc": invalid syntax'),
    ("?flags=-1", 500, 'strconv.ParseUint: parsing "-1": invalid syntax'),
    ("?flags=", 500, 'strconv.ParseUint: parsing "": invalid syntax'),
    ("?flags=0x10", 500, 'strconv.ParseUint: parsing "0x10": invalid syntax'),
    (
        "?flags=18446744073709551616",
        500,
        'strconv.ParseUint: parsing "18446744073709551616": value out of range',
    ),
    ("?cas=x", 500, 'strconv.ParseUint: parsing "x": invalid syntax'),
    ("?acquire=", 500, "missing session"),
    ("?acquire", 500, "missing session"),
    ("?release=", 500, "missing session"),
    (f"?acquire={UNKNOWN}", 500, f'invalid session "{UNKNOWN}"'),
    ("?acquire=abc", 500, "failed session lookup: index error: UUID must be 36 characters"),
    ("?release=abc", 200, "false"),
    (f"?release={UNKNOWN}", 200, "false"),
    ("?acquire=x&cas=0", 400, "Conflicting flags: acquire=x&cas=0"),
    ("?release=x&acquire=x", 400, "Conflicting flags: acquire=x&release=x"),
    (
        "?ns=default",
        400,
        'Bad request: Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature',
    ),
    ("?ns=", 200, "true"),
    ("?dc=mars", 500, "No path to datacenter"),
]


@pytest.mark.parametrize(("query", "status", "text"), REFUSED, ids=[row[0] for row in REFUSED])
def test_writes_and_their_refusals(target: Target, query: str, status: int, text: str) -> None:
    answer = target.put(f"/v1/kv/{target.key()}{query}", b"v")
    assert answer.status == status
    assert target.says(answer.text.strip(), text)


def test_the_first_of_repeated_parameters_counts(target: Target) -> None:
    session = target.session()
    assert target.put(f"/v1/kv/{target.key()}?acquire={session}&acquire={UNKNOWN}").json is True


def test_large_values(target: Target) -> None:
    key = target.key()
    assert target.put(f"/v1/kv/{key}", b"x" * 524_288).json is True
    refused = target.put(f"/v1/kv/{key}", b"x" * 524_289)
    assert refused.status == 413
    assert refused.text.startswith("Request body(524289 bytes) too large, max size: 524288 bytes. See http")
    assert refused.headers["Connection"] == "close"


def test_a_chunked_upload_passes_the_limit(target: Target) -> None:
    key = target.key()
    connection = target.connect()
    connection.request("PUT", f"/v1/kv/{key}", iter([b"x" * 300_000] * 2), encode_chunked=True)
    with connection.getresponse() as reply:
        told = (reply.status, reply.read().strip())
    connection.close()
    if not target.is_1_8 and told[0] == 413:  # as the newest does
        assert target.get(f"/v1/kv/{key}").status == 404
        return
    assert told == (200, b"true")
    assert len(target.get(f"/v1/kv/{key}?raw").body) == 600_000


def test_delete(target: Target) -> None:
    key = target.key()
    assert target.delete(f"/v1/kv/{key}").json is True
    assert target.delete(f"/v1/kv/{key}?cas=7").json is True
    target.put(f"/v1/kv/{key}", b"v")
    assert target.delete(f"/v1/kv/{key}?cas=0").json is False
    assert target.delete(f"/v1/kv/{key}?cas=1").json is False
    conflict = target.delete(f"/v1/kv/{key}?recurse&cas=1")
    assert (conflict.status, conflict.text.strip()) == (400, "Conflicting flags: cas=1&recurse=")
    assert target.delete(f"/v1/kv/{key}?cas={target.entry(key)['ModifyIndex']}").json is True
    assert target.get(f"/v1/kv/{key}").status == 404


def test_recursive_delete_takes_a_string_prefix(target: Target) -> None:
    for name in ("t", "t/a", "tz", "u"):
        target.put(f"/v1/kv/{target.key(name)}", b"v")
    assert target.delete(f"/v1/kv/{target.key('t')}?recurse").json is True
    left = [entry["Key"] for entry in target.get(f"/v1/kv/{target.key('')}?recurse").json]
    assert left == [target.key("u")]


def test_reads_of_nothing(target: Target) -> None:
    for query in ("", "?raw", "?recurse", "?keys"):
        answer = target.get(f"/v1/kv/{target.key()}{query}")
        assert (answer.status, answer.body) == (404, b"")
        assert answer.headers["Content-Type"] is None
        assert answer.index >= 1
        assert answer.headers["X-Consul-KnownLeader"] == "true"
        assert answer.headers["X-Consul-LastContact"] == "0"
    for method in ("GET", "PUT", "DELETE"):
        answer = target.ask(method, "/v1/kv/", b"")
        assert (answer.status, answer.text) == (400, "Missing key name")


def test_raw(target: Target) -> None:
    key = target.key()
    target.put(f"/v1/kv/{key}", b"\x00\xff")
    answer = target.get(f"/v1/kv/{key}?raw")
    assert answer.body == b"\x00\xff"
    kind = answer.headers["Content-Type"]
    assert kind == "text/plain" or (not target.is_1_8 and kind == "text/plain; charset=utf-8")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"] == "sandbox"
    assert target.get(f"/v1/kv/{key}?raw&recurse").json[0]["Key"] == key


@pytest.mark.parametrize(
    ("prefix", "query", "names"),
    [
        ("p/", "keys&separator=/", ["p/", "p/x/", "p/y"]),
        ("p/", "keys&seperator=/", ["p/", "p/x/", "p/y"]),
        ("p", "keys&separator=/", ["p", "p/"]),
        ("p", "keys", ["p", "p/", "p/x/1", "p/x/2", "p/y"]),
        ("p/x", "keys&recurse", ["p/x/1", "p/x/2"]),
    ],
)
def test_keys(target: Target, prefix: str, query: str, names: list[str]) -> None:
    for name in ("p", "p/", "p/x/1", "p/x/2", "p/y", "q"):
        target.put(f"/v1/kv/{target.key(name)}", b"v")
    assert target.get(f"/v1/kv/{target.key(prefix)}?{query}").json == [target.key(name) for name in names]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a%2Fb", "a/b"),
        ("a%2fb", "a/b"),
        ("a%252Fb", "a%2Fb"),
        ("a+b", "a+b"),
        ("a%20b", "a b"),
        ("%C3%A9", "é"),
        ("%F0%9F%98%80", "😀"),
        (":;@", ":;@"),
        ("q%3F%23", "q?#"),
        ("trail/", "trail/"),
    ],
)
def test_key_names(target: Target, path: str, name: str) -> None:
    put = target.put(f"/v1/kv/{target.key()}{path}", b"v")
    if put.status == 500 and not target.is_1_8 and not SAFE_NAME.fullmatch(name):
        assert "invalid key name" in put.text  # 1.21.5 takes none but safe names
        return
    assert put.json is True
    listed = target.get(f"/v1/kv/{target.key()}?recurse").json
    assert [entry["Key"] for entry in listed] == [target.key() + name]


def test_names_that_are_no_utf_8(target: Target) -> None:
    """Kept byte by byte, and told apart by them, though JSON shows each bad byte as U+FFFD."""
    key = target.key("d/")
    put = target.put(f"/v1/kv/{key}%FF", b"1")
    if put.status == 500 and not target.is_1_8:
        assert "invalid key name" in put.text
        return
    assert put.json is True
    assert target.put(f"/v1/kv/{key}%FE", b"2").json is True
    assert [target.get(f"/v1/kv/{key}{name}?raw").body for name in ("%FF", "%FE")] == [b"1", b"2"]
    assert target.get(f"/v1/kv/{key}?keys").json == [f"{key}\ufffd"] * 2
    assert target.delete(f"/v1/kv/{key}%FF").json is True
    assert [entry["Value"] for entry in target.get(f"/v1/kv/{key}?recurse").json] == ["Mg=="]


@pytest.mark.parametrize("path", ["//a", "a//b", "a/./b", "a/../b", "a%2F%2Fb", "a%2F..%2Fb"])
def test_unclean_names_are_redirected(target: Target, path: str) -> None:
    answer = target.put(f"/v1/kv/{target.key('')}{path}?flags=1", b"v")
    listed = target.get(f"/v1/kv/{target.key('')}?keys")
    if "%2F" in path and not target.is_1_8 and answer.status == 200:  # what is quoted, 1.20.6 takes as it is
        cleaned = posixpath.normpath(unquote(path))  # and since 1.22, cleaned
        assert listed.json in ([target.key("") + unquote(path)], [target.key("") + cleaned])
        return
    if target.is_1_8 or ".." not in path:  # since 1.22, a way up is refused
        assert target.is_redirect(answer.status)
        assert answer.body == b""
        assert answer.headers["Location"].endswith("?flags=1")
    assert listed.status == 404


@pytest.mark.parametrize("path", ["%", "%4", "%zz", "a%2", "%C3%A"])
def test_what_is_not_percent_encoded_is_refused(target: Target, path: str) -> None:
    assert target.put(f"/v1/kv/{target.key(path)}").status == 400
    assert target.get(f"/v1/kv/{target.key('')}?keys").status == 404


@pytest.mark.parametrize("path", ["%09", "%00", "%0A", "%E2%80%8B", "%7F"])
def test_unprintable_names_are_refused(target: Target, path: str) -> None:
    answer = target.put(f"/v1/kv/{target.key()}{path}", b"v")
    assert (answer.status, answer.body) == (400, b"")


def test_a_long_name(target: Target) -> None:
    key = target.key("k" * 3_000)
    assert target.put(f"/v1/kv/{key}", b"v").json is True
    assert target.entry(key)["Key"] == key


def test_lists_are_ordered_by_bytes(target: Target) -> None:
    names = ["a", "a-", "a.b", "a/b", "aB", "aa", "z"]
    for name in reversed(names):
        target.put(f"/v1/kv/{target.key(name)}", b"v")
    listed = target.get(f"/v1/kv/{target.key('')}?recurse").json
    assert [entry["Key"] for entry in listed] == [target.key(name) for name in names]
    assert [target.key(name) for name in names] == sorted(map(target.key, names))


def test_a_recursive_delete_frees_locks_without_delay(target: Target) -> None:
    key, first, second = target.key("t/k"), target.session(), target.session()
    target.put(f"/v1/kv/{key}?acquire={first}")
    assert target.delete(f"/v1/kv/{target.key('t')}?recurse").json is True
    assert target.put(f"/v1/kv/{key}?acquire={second}").json is True


def test_anyone_may_delete_a_locked_key_only_with_the_right_index(target: Target) -> None:
    key, session = target.key(), target.session()
    target.put(f"/v1/kv/{key}?acquire={session}")
    assert target.delete(f"/v1/kv/{key}?cas=1").json is False
    assert target.delete(f"/v1/kv/{key}?cas={target.entry(key)['ModifyIndex']}").json is True
    assert target.info(session)


def test_indexes_of_lists_and_of_nothing(target: Target) -> None:
    a, b = target.key("p/a"), target.key("p/b")
    target.put(f"/v1/kv/{a}", b"v")
    target.put(f"/v1/kv/{b}", b"v")
    newest = target.entry(b)["ModifyIndex"]
    target.put(f"/v1/kv/{target.key('elsewhere')}", b"v")
    assert target.get(f"/v1/kv/{a}").index == target.entry(a)["ModifyIndex"]
    assert target.get(f"/v1/kv/{target.key('p/')}?recurse").index == newest
    target.delete(f"/v1/kv/{b}")
    deleted = target.get(f"/v1/kv/{target.key('p/')}?recurse").index
    assert deleted > newest
    target.put(f"/v1/kv/{target.key('elsewhere')}", b"w")
    assert target.get(f"/v1/kv/{target.key('p/')}?recurse").index == deleted
    table = target.get("/v1/kv/?recurse").index
    assert table > deleted
    assert target.get(f"/v1/kv/{target.key('none')}").index >= table
