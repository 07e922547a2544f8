"""What each event adds to the measures, and that the documentation lists all of both."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path

import pytest

import consul_coord
from consul_coord import Blocker, LossReason, ReleaseOutcome, events
from consul_coord.observability.measures import GROUP, MEASURES, MOST_ENDS, Book, labels_for, labels_of

DOCUMENT = Path(consul_coord.__file__).parent.parent / "docs" / "observability.md"


def taken(key: str = "k", session: str = "s", fence: int = 7) -> events.Acquired:
    return events.Acquired(key, session, fence, waited=0.5)


def added(*told: tuple[float, events.Event]) -> list[tuple[str, float, dict[str, str]]]:
    """Return what a sequence of events adds, but for the counts of events."""
    book = Book()
    return [
        (reading.measure.name, reading.amount, dict(reading.labels))
        for now, event in told
        for reading in book.read(event, now)
        if reading.measure.name != "events"
    ]


TAKEN: list[tuple[str, float, dict[str, str]]] = [("acquire.wait", 0.5, {}), ("holds", 1, {})]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (events.Waiting("k", Blocker("queued", position=1)), [("acquire.waiting", 1, {"blocker": "queued"})]),
        (taken(), TAKEN),
        (events.Renewed("s", 14.0), [("renewals", 1, {})]),
        (events.Jeopardy("s", 3.0, "boom"), [("renewal.failures", 1, {})]),
        (events.Retried("GET", "/v1/kv/k", "boom"), [("retries", 1, {"method": "GET"})]),
        (events.Elected("k", "s", 7), [("leading", 1, {})]),
        (
            events.TimedOut("k", Blocker("held", "s"), 1.5),
            [("acquire.timeouts", 1, {"blocker": "held"})],
        ),
        (events.Resigned("k", "s", 7), []),
        (events.Cleaned("k", "s", found=True), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_event(event: events.Event, expected: list[tuple[str, float, dict[str, str]]]) -> None:
    assert added((1.0, event)) == expected


ONE_OF_EACH: tuple[events.Event, ...] = (
    events.Waiting("k", Blocker("queued", position=1)),
    taken(),
    events.Elected("k", "s", 7),
    events.TimedOut("k", Blocker("held", "s"), 1.5),
    events.Lost("k", "s", 7, LossReason.EXPIRED),
    taken(fence=8),
    events.Released("k", "s", 8, ReleaseOutcome.RELEASED),
    events.Renewed("s", 14.0),
    events.Jeopardy("s", 3.0, "boom"),
    events.Retried("GET", "/v1/kv/k", "boom"),
)
"""In which each measure has a reading."""


def test_each_reading_is_in_the_group_of_its_key_if_its_measure_is_about_keys() -> None:
    book = Book()
    readings = [reading for event in ONE_OF_EACH for reading in book.read(event, 1.0)]
    assert {reading.measure for reading in readings} == {*MEASURES}
    for reading in readings:
        labels = labels_for(reading, lambda key: f"of {key}")
        assert (labels.get(GROUP) == "of k") == reading.measure.of_key, reading
        assert {*labels} == {*labels_of(reading.measure, str)}, "of which the instruments are made"
        assert {*labels_for(reading, None)} == {*labels_of(reading.measure, None)}


def test_a_leadership_whose_end_was_told_first_does_not_count() -> None:
    released = events.Released("k", "s", 7, ReleaseOutcome.RELEASED)
    found = added((1.0, released), (2.0, events.Elected("k", "s", 7)), (3.0, events.Elected("k", "s", 9)))
    assert [each for each in found if each[0] == "leading"] == [("leading", 1, {})]


def test_a_hold_that_is_handed_over_lasts_no_longer_here() -> None:
    assert added((1.0, taken()), (3.5, events.HandedOver("k", "s", 7))) == [
        *TAKEN,
        ("holds", -1, {}),
        ("hold.duration", 2.5, {"end": "handed over"}),
    ]


def test_a_hold_that_was_handed_over_may_come_back() -> None:
    over = events.HandedOver("k", "s", 7)
    assert added((1.0, taken()), (2.0, over), (3.0, taken()))[-2:] == TAKEN


def test_a_hold_lasts_until_it_is_released() -> None:
    released = events.Released("k", "s", 7, ReleaseOutcome.RELEASED)
    assert added((10.0, taken()), (14.0, released)) == [
        *TAKEN,
        ("released", 1, {"outcome": "released"}),
        ("holds", -1, {}),
        ("hold.duration", 4.0, {"end": "released"}),
    ]


def test_a_lost_leadership_is_a_lost_hold() -> None:
    lost = events.Lost("k", "s", 7, LossReason.EXPIRED)
    assert added((10.0, taken()), (10.0, events.Elected("k", "s", 7)), (11.0, lost)) == [
        *TAKEN,
        ("leading", 1, {}),
        ("lost", 1, {"reason": "expired"}),
        ("holds", -1, {}),
        ("hold.duration", 1.0, {"end": "lost"}),
        ("leading", -1, {}),
    ]


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (events.Lost("k", "s", 7, LossReason.EXPIRED), ("lost", 1, {"reason": "expired"})),
        (
            events.Released("k", "s", 7, ReleaseOutcome.RELEASED),
            ("released", 1, {"outcome": "released"}),
        ),
    ],
    ids=["lost", "released"],
)
def test_a_hold_whose_end_is_told_first_is_none(
    end: events.Event, told: tuple[str, float, dict[str, str]]
) -> None:
    assert added((1.0, end), (2.0, taken()), (2.0, events.Elected("k", "s", 7))) == [told, TAKEN[0]]


def test_only_the_latest_ends_are_remembered() -> None:
    book = Book()
    for fence in range(2 * MOST_ENDS):
        list(book.read(events.Lost("k", "s", fence, LossReason.EXPIRED), 1.0))
    last = list(book.read(taken(fence=2 * MOST_ENDS - 1), 2.0))
    first = list(book.read(taken(fence=0), 2.0))
    assert [len(last), len(first)] == [2, 3], "the first one is not known any more, and counted"


def test_what_ends_twice_is_counted_down_once() -> None:
    unknown = events.Released("k", "s", 7, ReleaseOutcome.UNKNOWN)
    later = events.Released("k", "s", 7, ReleaseOutcome.RELEASED)
    down = [name for name, amount, _ in added((1.0, taken()), (2.0, unknown), (3.0, later)) if amount < 0]
    assert down == ["holds"]


def test_a_later_hold_of_the_same_session_is_another_one() -> None:
    first = events.Released("k", "s", 7, ReleaseOutcome.RELEASED)
    assert (
        sum(
            amount
            for name, amount, _ in added((1.0, taken()), (2.0, taken(fence=8)), (3.0, first))
            if name == "holds"
        )
        == 1
    )


def test_every_event_is_counted_by_its_kind() -> None:
    book = Book()
    (first, *_) = book.read(events.Renewed("s", 1.0), 0.0)
    assert (first.measure.name, first.labels) == ("events", {"event": "renewed"})


def test_only_what_is_about_a_key_is_grouped() -> None:
    book = Book()
    count, wait, _ = book.read(taken("jobs/nightly"), 0.0)
    assert labels_for(wait, lambda key: key.partition("/")[0]) == {GROUP: "jobs"}
    assert labels_for(wait, None) == {}
    assert labels_for(count, str) == {"event": "acquired"}


# -- the documentation


def fields_of(kind: type[events.Event]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def rows(heading: str) -> dict[str, list[str]]:
    """Return the cells of a table of the document, by the first one."""
    section = DOCUMENT.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in table}


def test_every_event_is_documented_as_it_is() -> None:
    expected = {
        kind.__name__: [
            ", ".join(f"`{member}`" for member in fields_of(kind)),
            logging.getLevelName(kind.level).lower(),
            re.sub(r"``([^`]*)``", r"`\1`", (kind.__doc__ or "").partition("\n")[0]),
        ]
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
    }
    assert rows("Events") == expected


def test_a_first_join_is_for_debugging_and_one_after_a_loss_is_information() -> None:
    first, again = (events.Joined("k", "s", 7, again=again) for again in (False, True))
    assert (first.rank, again.rank) == (logging.DEBUG, logging.INFO)


def test_every_measure_is_documented_as_it_is() -> None:
    expected = {
        measure.name: [measure.kind, ", ".join(f"`{label}`" for label in measure.labels), measure.text]
        for measure in MEASURES
    }
    assert rows("Metrics") == expected
