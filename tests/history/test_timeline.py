"""A picture is well-formed, holds everything that was recorded, and nothing that a record smuggled in."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consul_coord.testing.history import KINDS, Record, html, svg
from consul_coord.testing.history.layout import NARROWEST, WIDEST, clock
from tests.history.happenings import happened, held, in_order

_SVG = "{http://www.w3.org/2000/svg}"
_texts = st.text(max_size=6) | st.sampled_from(["<script>", "]]>", "&amp;", '"', "\x00", "\ud800", "{x}"])
_records = st.builds(
    Record,
    at=st.floats(min_value=-1e6, max_value=1e6),
    process=_texts,
    kind=st.sampled_from(sorted(KINDS)),
    actor=_texts,
    key=_texts,
    session=_texts,
    fence=st.none() | st.integers(min_value=0, max_value=5),
    until=st.none() | st.floats(min_value=-1e6, max_value=1e6),
    detail=_texts,
)
STORY = in_order(
    [happened(0, "waiting"), happened(0.5, "fault", "agent-1", detail="SIGSTOP")],
    held(1, 2, 101, until=9.0),
    [
        happened(2, "elected", "p1/b", key="lead", fence=201, session="s"),
        happened(3, "jeopardy", "p1/b", key="lead", fence=201),
        happened(3.5, "ended", "agent-1", session="s"),
        happened(6, "lost", "p1/b", key="lead", fence=201, until=5.0),
        happened(4, "healed", "agent-1", detail="SIGSTOP"),
        happened(5, "fault", "agent-1", detail="kill -9"),
        happened(7, "gave_up", "p2/c"),
        happened(1.5, "write", fence=101, detail="w"),
        happened(7, "refused", fence=101, detail="late"),
    ],
    held(7, 7.001, 305, "p3/d"),
)


def _texts_of(picture: str) -> str:
    return " ".join(ET.fromstring(picture).itertext())


def _classes(picture: str) -> set[str]:
    drawn = picture.partition("</defs>")[2].partition("waiting</text>")[0]
    return set(re.findall(r'class="([\w ]+)"', drawn))


def test_every_hold_is_drawn_with_its_fence() -> None:
    picture = svg(STORY)
    fences = [
        text.text
        for text in ET.fromstring(picture).iter(f"{_SVG}text")
        if (text.get("class") or "").startswith("fence")
    ]
    assert sorted(fences, key=str) == ["101", "201", "305"]


def test_a_hold_too_narrow_for_its_fence_tells_it_as_a_tooltip() -> None:
    crowd = [record for n in range(500) for record in held(n * 0.01, n * 0.01 + 0.005, 1000 + n)] + held(
        9, 20_000, 5000
    )
    told = _texts_of(svg(crowd))
    assert all(f"fence {1000 + n}," in told for n in range(500))


def test_each_happening_has_its_look() -> None:
    assert {
        *("held", "led", "waiting", "jeopardy", "dead", "untold", "lost", "gave_up", "write", "refused"),
        *("fault", "across", "moment", "mark", "fence", "fence beside"),
    } <= _classes(svg(STORY))


def test_a_plain_hold_has_no_look_of_trouble() -> None:
    assert {"jeopardy", "dead", "untold", "lost", "fault", "across"}.isdisjoint(_classes(svg(held(1, 2, 3))))


def test_what_records_say_is_escaped() -> None:
    evil = "<script>alert(1)</script>&\x00\ud800"
    story = held(1, 2, 3, f"{evil}/{evil}", key=evil, session=evil)
    for picture in (svg(story, title=evil), html(story, title=evil)):
        assert "<script" not in picture
        picture.encode()
    assert "<script>alert(1)</script>&\ufffd\ufffd" in _texts_of(svg(story, title=evil))


@pytest.mark.slow
@settings(max_examples=150)
@given(records=st.lists(_records, max_size=12).map(lambda records: sorted(records, key=lambda one: one.at)))
def test_any_history_gives_a_well_formed_picture(records: list[Record]) -> None:
    ET.fromstring(svg(records))
    page = html(records)
    for part in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ET.fromstring(part)


def test_the_page_refers_to_nothing_else() -> None:
    page = html(STORY)
    assert "<script" not in page
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    ("seconds", "longest", "width"),
    [(0.01, 0.01, NARROWEST), (10, 1, NARROWEST), (1e6, 1e6, NARROWEST), (1e6, 1, WIDEST)],
)
def test_a_run_fills_the_page_or_is_as_wide_as_its_holds_need(
    seconds: float, longest: float, width: float
) -> None:
    story = in_order(held(0, longest, 1), held(seconds, seconds + longest, 2))
    page = ET.fromstring(svg(story))
    assert width <= float(page.get("width", "0")) <= width + 600
    ticks = [text for text in page.iter(f"{_SVG}text") if text.get("class") == "tick"]
    assert 5 < len(ticks) < 400


@pytest.mark.parametrize(
    ("seconds", "step", "text"),
    [(0.25, 0.05, "0.25 s"), (2, 0.5, "2.0 s"), (65, 5, "1:05"), (3605, 60, "1:00:05")],
)
def test_times_are_as_exact_as_the_ticks(seconds: float, step: float, text: str) -> None:
    assert clock(seconds, step) == text
