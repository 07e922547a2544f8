"""Which keys are refused, how they are encoded, and durations as text."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.errors import InvalidArgument, InvalidKey
from consul_coord.http.endpoints import _durations, _keys

GOOD = [
    "a",
    "a/b",
    "trail/",
    ".lock",
    "k/.wait/x",
    "...",
    "a b",
    "é",
    "😀",
    "a:b;c@d+e?f#g%h",
    "%2e%2e",
    "a\\b",
    '"',
]
BAD = {
    "/lead": "starts with '/'",
    "/": "starts with '/'",
    "a//b": "'//'",
    ".": "segment",
    "..": "segment",
    "./a": "segment",
    "a/./b": "segment",
    "a/..": "segment",
    "a/.": "segment",
    "tab\t": "unprintable",
    "nul\0": "unprintable",
    "line\n": "unprintable",
    "\u200b": "unprintable",
    "\u00a0": "unprintable",
    "\ud800": "unprintable",
    "\x7f": "unprintable",
}


@pytest.mark.parametrize("key", GOOD)
def test_good_keys(key: str) -> None:
    assert _keys.check_key(key) == key
    assert _keys.check_prefix(key) == key


@pytest.mark.parametrize(("key", "why"), BAD.items())
def test_bad_keys(key: str, why: str) -> None:
    for check in (_keys.check_key, _keys.check_prefix):
        with pytest.raises(InvalidKey, match=why) as caught:
            check(key)
        assert caught.value.key == key
    with pytest.raises(InvalidArgument, match=why):
        _keys.check_id("session", key)


@pytest.mark.parametrize("key", ["jobs/a b", "a..b", "100%", "%41", "a%2Fb", "%zz", "é", "a+b", "jobs/.lock"])
def test_names_that_each_release_reads(key: str) -> None:
    assert _keys.check_name(key) == key


@pytest.mark.parametrize(
    ("key", "why"),
    [
        *BAD.items(),
        (" jobs", "begins or ends with a space"),
        ("jobs/nightly ", "begins or ends with a space"),
        ("jobs/100%20", "stands for a space"),
        ("a%20b/c", "stands for a space"),
        ("%2e%2E/a", r"or '\.\.'"),
        ("a/.%2e/b", r"or '\.\.'"),
    ],
)
def test_names_that_some_release_refuses_to_read(key: str, why: str) -> None:
    with pytest.raises(InvalidKey, match=why) as caught:
        _keys.check_name(key)
    assert caught.value.key == key


def test_empty() -> None:
    assert not _keys.check_prefix("")
    with pytest.raises(InvalidKey, match="empty"):
        _keys.check_key("")
    with pytest.raises(InvalidArgument, match="empty"):
        _keys.check_id("session", "")


@given(st.text(max_size=30))
def test_an_accepted_key_reaches_the_server_as_it_is(key: str) -> None:
    try:
        path = _keys.path("/v1/kv/", _keys.check_key(key))
    except InvalidKey:
        return
    assert path.isascii()
    assert path.isprintable()
    assert unquote(path, errors="strict") == "/v1/kv/" + key
    assert not set(path) & set("?#+ &;")
    assert all(segment not in {"", ".", ".."} for segment in unquote(path)[1:].split("/")[:-1])


WRITTEN = {
    0.0: "0s",
    15.0: "15s",
    0.5: "500ms",
    1.5: "1500ms",
    86400.0: "86400s",
    0.1 + 0.2: "300ms",
    0.00025: "250us",
    1e-9: "1ns",
    0.0000015: "1500ns",
}


@pytest.mark.parametrize(("seconds", "text"), WRITTEN.items())
def test_write_duration(seconds: float, text: str) -> None:
    assert _durations.to_text(seconds) == text


READ = {
    "15s": 15.0,
    "1m30s": 90.0,
    "1m1.5s": 61.5,
    "1.5m1s": 91.0,
    "1.5h1.25m1s": 5476.0,
    "24h": 86400.0,
    "24h0m0s": 86400.0,
    "1.5h": 5400.0,
    ".5s": 0.5,
    "1.s": 1.0,
    "1500ms": 1.5,
    "1.25h1s": 4501.0,
    "1us": 1e-6,
    "1µs": 1e-6,
    "1μs": 1e-6,
    "7ns": 7e-9,
    "0": 0.0,
    "0s": 0.0,
    "-5s": -5.0,
    "+5s": 5.0,
    "2500000.75h": 9_000_002_700.0,
    f"{2**63 - 1}ns": 9_223_372_036.854775807,
}


@pytest.mark.parametrize(("text", "seconds"), READ.items())
def test_read_duration(text: str, seconds: float) -> None:
    assert _durations.to_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", ".s", "5 s", "5x", "--5s", "-+5s", "1h2", "٣s", "1e3s", "0" * 65]
)
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        _durations.to_seconds(text)


@pytest.mark.parametrize("text", ["9223372037s", "2562048.25h", f"{2**63}ns"])
def test_a_duration_past_64_bits(text: str) -> None:
    with pytest.raises(ValueError, match="too long"):
        _durations.to_seconds(text)


@given(st.integers(0, 86_400 * 10**9))
def test_durations_come_back(nanoseconds: int) -> None:
    seconds = nanoseconds / 10**9
    assert _durations.to_seconds(_durations.to_text(seconds)) == pytest.approx(seconds, abs=1e-9)


@given(st.text(max_size=70))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert isinstance(_durations.to_seconds(text), float)
    except ValueError as error:
        assert "duration" in str(error)  # noqa: PT017
