"""Portions of a suite: every test is in one, and in one only."""

from __future__ import annotations

import pytest

from tests.support.portions import is_in, parse

NAMES = [f"tests/test_some.py::test_it[{number}]" for number in range(200)]


def test_each_test_is_in_one_portion() -> None:
    for name in NAMES:
        assert sum(is_in(name, (number, 12)) for number in range(12)) == 1


def test_no_portion_is_empty_or_much_larger_than_others() -> None:
    sizes = [sum(is_in(name, (number, 5)) for name in NAMES) for number in range(5)]
    assert min(sizes) > 20
    assert max(sizes) < 80


def test_a_number_beyond_the_count_begins_again() -> None:
    assert parse("17/12") == (5, 12)


@pytest.mark.parametrize("given", ["", "3", "3/0", "a/b", "-1/3", "1/2/3"])
def test_what_is_no_portion_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="K/N"):
        parse(given)
