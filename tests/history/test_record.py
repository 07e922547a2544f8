"""A record survives its line; whatever is no record is refused with its line's number."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.testing.history import KINDS, BadHistory, Record, dump, load, merge, to_line
from consul_coord.testing.history.record import from_line

_texts = st.text(max_size=20)
_times = st.floats(allow_nan=False, allow_infinity=False)
_records = st.builds(
    Record,
    at=_times,
    process=_texts,
    kind=st.sampled_from(sorted(KINDS)),
    actor=_texts,
    key=_texts,
    session=_texts,
    fence=st.none() | st.integers(min_value=0, max_value=2**64 - 1),
    until=st.none() | _times,
    detail=_texts,
)

GOOD = {
    "at": 1.5,
    "process": "p1",
    "kind": "acquired",
    "actor": "a",
    "key": "k",
    "session": "s",
    "fence": 7,
    "until": 9.0,
    "detail": "",
}
BAD = {
    "not JSON": "acquired at noon",
    "deep": "[" * 100_000,
    "no object": "[]",
    "missing field": json.dumps({name: value for name, value in GOOD.items() if name != "until"}),
    "unknown field": json.dumps(GOOD | {"colour": "red"}),
    "unknown kind": json.dumps(GOOD | {"kind": "stolen"}),
    "unhashable kind": json.dumps(GOOD | {"kind": []}),
    "time as text": json.dumps(GOOD | {"at": "1.5"}),
    "time not finite": json.dumps(GOOD | {"at": float("inf")}),
    "time beyond floats": json.dumps(GOOD | {"at": 10**400}),
    "no time": json.dumps(GOOD | {"at": None}),
    "time as truth": json.dumps(GOOD | {"at": True}),
    "broken fence": json.dumps(GOOD | {"fence": 7.5}),
    "negative fence": json.dumps(GOOD | {"fence": -1}),
    "key as number": json.dumps(GOOD | {"key": 5}),
}


@given(records=st.lists(_records, max_size=5))
def test_what_is_dumped_is_loaded(records: list[Record]) -> None:
    file = io.StringIO()
    dump(records, file)
    file.seek(0)
    assert load(file) == records


@pytest.mark.parametrize("name", BAD)
def test_garbage_is_refused_with_its_line(name: str) -> None:
    file = io.StringIO(json.dumps(GOOD) + "\n" + BAD[name] + "\n")
    with pytest.raises(BadHistory) as caught:
        load(file)
    assert caught.value.line == 2


@given(text=st.text() | st.recursive(st.none() | st.booleans() | st.floats(), st.lists).map(json.dumps))
def test_any_text_is_a_record_or_refused(text: str) -> None:
    with pytest.raises(BadHistory):
        from_line(text)


def test_a_last_line_that_was_cut_off_is_left_out_when_that_may_be() -> None:
    whole = to_line(Record(at=1, process="p", kind="note"))
    assert len(load(io.StringIO(whole + whole[:-3]), cut_off=True)) == 1
    with pytest.raises(BadHistory):
        load(io.StringIO(whole + whole[:-3]))
    with pytest.raises(BadHistory):
        load(io.StringIO(whole[:-3] + "\n" + whole), cut_off=True)


def test_an_unknown_kind_can_not_be_made() -> None:
    with pytest.raises(BadHistory):
        Record(at=1, process="p", kind="stolen")


def test_histories_are_merged_by_time_and_stay_stable() -> None:
    first = [Record(at=1, process="a", kind="note"), Record(at=3, process="a", kind="note")]
    second = [Record(at=1, process="b", kind="note"), Record(at=2, process="b", kind="note")]
    assert [(record.at, record.process) for record in merge(first, second)] == [
        (1, "a"),
        (1, "b"),
        (2, "b"),
        (3, "a"),
    ]
