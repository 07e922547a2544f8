"""The numbers of the page on TTLs are what the calculator says."""

from __future__ import annotations

import re

import pytest

from consul_coord import SessionSpec, failover_bound
from tests.integrations import pages

PAGE = "choosing-ttl"
ROWS = re.findall(r"^\| .* \| `(SessionSpec.*?)` \| (\d+) s", pages.text_of(PAGE), re.MULTILINE)
LEASE_TABLE = "\n".join(re.findall(r"^\| `SessionSpec.*", pages.text_of(PAGE), re.MULTILINE))
LEASES = re.findall(r"`(SessionSpec[^`]*?)`(?: \||:) ([\d.]+) s", LEASE_TABLE)
PRINTED = re.findall(r"print\((failover_bound.*?)\)  # ([\d.]+)", pages.text_of(PAGE))


@pytest.mark.parametrize(("spec", "seconds"), ROWS)
def test_the_table(spec: str, seconds: str) -> None:
    assert failover_bound(eval(spec, {"SessionSpec": SessionSpec})) == float(seconds)


@pytest.mark.parametrize(("spec", "seconds"), LEASES)
def test_the_leases(spec: str, seconds: str) -> None:
    made = eval(spec, {"SessionSpec": SessionSpec})
    assert (1 - made.drift) * made.lease_horizon == pytest.approx(float(seconds))


@pytest.mark.parametrize(("spec", "_"), ROWS)
def test_a_recommended_spec_gives_the_lease_that_its_ttl_promises(spec: str, _: str) -> None:
    made = eval(spec, {"SessionSpec": SessionSpec})
    assert made.lease_horizon == made.ttl


@pytest.mark.parametrize(("call", "seconds"), PRINTED)
def test_the_comments(call: str, seconds: str) -> None:
    names = {"SessionSpec": SessionSpec, "failover_bound": failover_bound}
    assert eval(call, names) == float(seconds)


def test_all_of_them_are_seen() -> None:
    assert (len(ROWS), len(LEASES), len(PRINTED)) == (6, 9, 4)
