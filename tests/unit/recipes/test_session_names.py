"""Names by which a session is found that nobody knows the id of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consul_coord.recipes.session.names import UNNAMED, Names, means, without_mark


def test_no_two_are_the_same() -> None:
    ours, theirs = Names(0.25), Names(0.75)
    names = [each.unique("billing") for each in (ours, ours, theirs, theirs)]
    assert len(set(names)) == 4
    assert {without_mark(name) for name in names} == {"billing"}


def test_who_has_no_name_gets_one() -> None:
    assert without_mark(Names(0.5).unique(None)) == UNNAMED


@given(st.text(), st.floats(0, 1, exclude_max=True))
def test_the_users_name_comes_back(name: str, random: float) -> None:
    assert without_mark(Names(random).unique(name)) == (name or UNNAMED)


@pytest.mark.parametrize("name", ["billing", "billing #", "billing #12-3", "billing #5F0C1A2B3C4D-1", ""])
def test_a_name_without_a_mark_stays_as_it_is(name: str) -> None:
    assert without_mark(name) == name


@pytest.mark.parametrize(
    ("wanted", "name", "meant"),
    [
        ("billing", "billing", True),
        ("billing", "billing #5f0c1a2b3c4d-1", True),
        ("billing #5f0c1a2b3c4d-1", "billing #5f0c1a2b3c4d-1", True),
        ("billing #5f0c1a2b3c4d-1", "billing #5f0c1a2b3c4d-2", False),
        ("bill*", "billing #5f0c1a2b3c4d-1", True),
        ("*ing", "billing #5f0c1a2b3c4d-1", True),
        ("billin", "billing #5f0c1a2b3c4d-1", False),
        ("Billing", "billing", False),
    ],
)
def test_sessions_are_meant_by_their_users_name(wanted: str, name: str, meant: bool) -> None:
    assert means(wanted, name) is meant
