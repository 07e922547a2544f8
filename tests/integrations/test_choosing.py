"""The numbers of the page on TTLs are what the calculator says."""

from __future__ import annotations

import re

import pytest

from consul_coord import SessionSpec, failover_bound
from tests.integrations import pages

PAGE = "choosing-ttl"
ROWS = re.findall(r"^\| .* \| `(SessionSpec.*?)` \| (\d+) s", pages.text_of(PAGE), re.MULTILINE)
PRINTED = re.findall(r"print\((failover_bound.*?)\)  # ([\d.]+)", pages.text_of(PAGE))


@pytest.mark.parametrize(("spec", "seconds"), ROWS)
def test_the_table(spec: str, seconds: str) -> None:
    assert failover_bound(eval(spec, {"SessionSpec": SessionSpec})) == float(seconds)


@pytest.mark.parametrize(("call", "seconds"), PRINTED)
def test_the_comments(call: str, seconds: str) -> None:
    names = {"SessionSpec": SessionSpec, "failover_bound": failover_bound}
    assert eval(call, names) == float(seconds)


def test_all_of_them_are_seen() -> None:
    assert (len(ROWS), len(PRINTED)) == (5, 4)
