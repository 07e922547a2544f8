"""The blocking facades are what ``tools/make_sync.py`` makes of the async ones, and nothing else."""

from __future__ import annotations

import ast
import re

import pytest

from tools import make_sync


def test_made_files_are_what_their_sources_make() -> None:
    assert sorted(make_sync.stale()) == [], "run: python tools/make_sync.py"


def test_every_file_that_says_it_is_made_is() -> None:
    heads = {
        path.relative_to(make_sync.ROOT): path.read_text("utf-8").partition("\n")[0] + "\n"
        for path in (make_sync.ROOT / "consul_coord").rglob("*.py")
    }
    made = {path: first for path, first in heads.items() if first.startswith("# Made ")}
    assert made == {path: make_sync.head(path) for path in make_sync.MADE}


def test_nothing_of_the_event_loop_is_left_in_a_made_file() -> None:
    for path in make_sync.MADE:
        text = (make_sync.ROOT / path).read_text("utf-8").partition("\n")[2]
        ast.parse(text)
        assert re.findall(r"Async|\bawait\b|Await|\baio\b", text) == [], path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def f() -> None: ...", "def f() -> None: ..."),
        ("x = await g()", "x = g()"),
        ("async with a as b:\n    pass", "with a as b:\n    pass"),
        ("f: Callable[[AsyncHold], Awaitable[T]]", "f: Callable[[Hold], T]"),
        ("f: Callable[[], Coroutine[Any, Any, None]]", "f: Callable[[], None]"),
        ("'''As an ``AsyncLock``.'''", '"""As a ``Lock``."""'),
        ("raise StopAsyncIteration", "raise StopIteration"),
        ("import math", ""),
    ],
)
def test_the_step_drops_what_only_coroutines_need(source: str, expected: str) -> None:
    assert make_sync.made(make_sync.SYNC / "lock.py", source).split("\n", 1)[1].strip() == expected
