"""Tables and the screen of ``top``: every line fits, and rows that are not shown are announced."""

from __future__ import annotations

import io
import uuid

import pytest

from consul_coord.cli import holders, keyboard, tables
from consul_coord.cli.survey import Held, Place, Waits
from consul_coord.cli.view import View

IDS = [str(uuid.UUID(int=number)) for number in range(200)]
SIZES = [(80, 24), (120, 40), (40, 10), (20, 5), (1, 1)]


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def place(number: int, *, waiters: int = 0, key: str = "") -> Place:
    key = key or f"jobs/nightly-{number}"
    held = Held(key, IDS[number], f"web-{number}.example.org:4711".encode(), 10 + number, "node1")
    queue = tuple(
        Waits(position, f"{key}/.wait/{IDS[-position]}", IDS[-position], b"web-9:17", "node1")
        for position in range(1, waiters + 1)
    )
    return Place("lock", key, (held,), queue)


def shown(view: View, size: tuple[int, int] = (80, 24), now: float = 0.0) -> list[str]:
    return view.lines(size, now=now, clock="12:00:00", problem="")


def test_without_an_answer_the_screen_says_so_and_whether_it_shows_an_older_one() -> None:
    view = View("jobs/")
    warned = [view.lines((80, 24), now=0.0, clock="12:00:00", problem="refused")[1]]
    view.see((), now=0.0)
    warned.append(view.lines((80, 24), now=0.0, clock="12:00:00", problem="refused")[1])
    assert warned == ["no answer: refused", "no answer, this may be old: refused"]


def view_of(*places: Place) -> View:
    view = View("jobs/")
    view.see(places, now=0.0)
    return view


@pytest.mark.parametrize("width", [width for width, _ in SIZES])
def test_every_line_of_a_table_fits(width: int) -> None:
    rows = holders.rows([place(n, waiters=2, key="jobs/" + "\u6f22\u5b57" * n) for n in range(1, 20)])
    lines = tables.fitted(holders.COLUMNS, rows, width)
    assert len(lines) == len(rows) + 1
    assert max(map(tables.cells, lines)) <= width


def test_eighty_columns_show_whole_keys_and_short_ids() -> None:
    head, line, waits = tables.fitted(holders.COLUMNS, holders.rows([place(7, waiters=1)]), 80)
    assert head.split() == ["KIND", "KEY", "PLACE", "WHO", "SESSION", "NODE", "FENCE"]
    assert line.split() == [
        "lock",
        "jobs/nightly-7",
        "holds",
        "web-7.example.org:4711",
        IDS[7][:8],
        "node1",
        "17",
    ]
    assert waits.split()[:4] == ["lock", "jobs/nightly-7", "1", "web-9:17"]


def test_with_room_nothing_is_cut_or_left_out() -> None:
    _, line = tables.fitted(holders.COLUMNS, holders.rows([place(7)]), 120)
    assert IDS[7] in line


def test_columns_go_before_keys_are_cut_and_those_in_the_middle() -> None:
    rows = holders.rows([place(1, key="service/" + "x" * 24 + "/leader")])
    head, line = tables.fitted(holders.COLUMNS, rows, 80)
    assert "NODE" not in head
    assert rows[0][1] in line
    _, line = tables.fitted(holders.COLUMNS, rows, 50)
    assert "service/" in line
    assert "/leader" in line
    assert "\u2026" in line


@pytest.mark.parametrize(
    ("text", "width", "middle", "cut"),
    [
        ("short", 5, False, "short"),
        ("longer", 5, False, "long\u2026"),
        ("jobs/nightly", 9, True, "jobs\u2026htly"),
        ("jobs/nightly", 8, True, "jobs\u2026tly"),
        ("\u6f22\u5b57\u6f22\u5b57", 5, False, "\u6f22\u5b57\u2026"),
        ("x", 0, False, "\u2026"),
    ],
)
def test_a_text_is_cut_to_cells(text: str, width: int, *, middle: bool, cut: str) -> None:
    assert tables.cut(text, width, middle=middle) == cut


@pytest.mark.parametrize("size", SIZES)
def test_a_screen_is_as_large_as_the_terminal(size: tuple[int, int]) -> None:
    lines = shown(view_of(*(place(number, waiters=3) for number in range(30))), size)
    assert len(lines) == max(size[1], 5)
    assert max(map(tables.cells, lines)) <= size[0]


def test_rows_beyond_the_screen_are_announced_and_scrolled_to() -> None:
    view = view_of(*(place(number) for number in range(50)))
    assert "rows 1-20 of 50" in shown(view)[-1]
    assert "nightly-0 " in shown(view)[3]
    for key, first in [
        ("DOWN", 2),
        ("PAGE DOWN", 22),
        ("UP", 21),
        ("END", 31),
        ("DOWN", 31),
        ("HOME", 1),
        ("UP", 1),
    ]:
        assert view.press(key)
        assert f"rows {first}-{first + 19} of 50" in shown(view)[-1], key


def test_rows_that_fit_are_not_announced() -> None:
    assert "rows" not in shown(view_of(place(1)))[-1]


def test_a_filter_keeps_what_has_its_text() -> None:
    view = view_of(place(1), place(2), place(12))
    for key in ("/", *"WEB-1", "x", "BACKSPACE"):
        assert view.press(key)
    assert [line.split()[1] for line in shown(view)[3:] if line[:4] == "lock"] == [
        "jobs/nightly-1",
        "jobs/nightly-12",
    ]
    assert view.press("q"), "a letter of the filter"
    assert view.press("BACKSPACE")
    assert view.press("ENTER")
    assert "only 'WEB-1'" in shown(view)[-1]
    assert view.press("ESCAPE")
    assert sum(line[:4] == "lock" for line in shown(view)) == 3
    assert not view.press("q")


def test_ages_count_from_the_first_look() -> None:
    view = view_of(place(1))
    view.see((place(1), place(2)), now=5.0)
    held = [line.split()[-1] for line in shown(view, now=3725.0)[3:5]]
    assert held == ["1h02m+", "1h02m"]


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B", ["UP", "DOWN"]),
        ("\x1bOA", ["UP"]),
        ("\x1b[5~\x1b[6~", ["PAGE UP", "PAGE DOWN"]),
        ("\x1b", ["ESCAPE"]),
        ("/a\r\x7f", ["/", "a", "ENTER", "BACKSPACE"]),
        ("\x1b[15~x", ["", "x"]),
    ],
)
def test_keys_have_names(typed: str, keys: list[str]) -> None:
    assert keyboard.named(typed) == keys


@pytest.mark.parametrize(
    ("settings", "codes"),
    [
        ({"TERM": "xterm"}, "\x1b[31m\x1b[1mtext\x1b[0m"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "\x1b[1mtext\x1b[0m"),
        ({"TERM": "dumb"}, "text"),
        ({"TERM": ""}, "text"),
    ],
)
def test_colours_need_a_terminal_that_has_some(
    settings: dict[str, str], codes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert tables.styled("text", Tty(), bold=True, colour="red") == codes
    assert tables.styled("text", io.StringIO(), bold=True, colour="red") == "text"
