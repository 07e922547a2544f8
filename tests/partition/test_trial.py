"""Members that are killed, stopped and cut off, on a cluster; and the judge of what they believed to own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from proof.partitions.judge import EVERYBODY, Harm, Spans, heirs, judge
from proof.partitions.member import Look, last_look, looks
from proof.partitions.trial import Plan, play

if TYPE_CHECKING:
    from pathlib import Path

MEMBERS = ["a", "b", "c"]
FIRST, SECOND, THIRD = heirs("0", MEMBERS)
BOUND = 31.0


@pytest.mark.search
@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_each_partition_has_one_owner_in_half_a_minute_of_harm(
    consul_binary: Path, tmp_path: Path, search_seed: int
) -> None:
    plan = Plan(
        seconds=25, seed=search_seed, members=8, partitions=16, ttl=3, pace=2, server_pace=15, server_down=3
    )
    outcome = play(plan, tmp_path, binary=consul_binary)
    sys.stdout.write(f"{outcome}\n")
    assert outcome.findings == []
    assert outcome.harms
    assert outcome.servers


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_each_partition_has_one_owner_in_a_quarter_of_an_hour_of_harm(
    consul_binary: Path, tmp_path: Path, search_seed: int
) -> None:
    outcome = play(Plan(seconds=900, seed=search_seed), tmp_path, binary=consul_binary)
    sys.stdout.write(f"{outcome}\n")
    assert outcome.findings == []
    assert {harm.kind for harm in outcome.harms} >= {"killed", "stopped", "cut off", "delivered late"}
    assert sum(outcome.servers.values()) >= 5


# -- the judge


def spans(*owned: tuple[str, int, float, float]) -> Spans:
    """Return who owned the partition "0", under which fence, from when to when."""
    found = Spans()
    for member, fence, first, last in owned:
        found.add(member, Look(first - 0.01, first, {"0": fence}))
        found.add(member, Look(last, last + 0.01, {"0": fence}))
    return found


def test_a_second_believer_is_found() -> None:
    fine = judge(spans((FIRST, 5, 1.0, 2.0), (SECOND, 9, 2.1, 3.0)), members=MEMBERS)
    assert fine.two_believers == []
    for late in (
        spans((FIRST, 5, 1.0, 2.2), (SECOND, 9, 2.1, 3.0)),
        spans((FIRST, 5, 1, 2), (SECOND, 5, 3, 4)),
    ):
        assert len(judge(late, members=MEMBERS).two_believers) == 1


def test_an_owner_that_believes_long_after_several_others_is_found() -> None:
    found = spans((FIRST, 5, 1.0, 9.0), (SECOND, 6, 2.0, 3.0), (THIRD, 7, 4.0, 5.0))
    assert len(judge(found, members=MEMBERS).two_believers) == 2


def test_a_look_that_took_long_accuses_nobody() -> None:
    found = spans((FIRST, 5, 1.0, 2.0))
    found.add(SECOND, Look(1.5, 2.5, {"0": 9}))  # stopped between the clock and the look
    assert judge(found, members=MEMBERS).two_believers == []


def test_the_time_without_an_owner_is_measured() -> None:
    verdict = judge(spans((FIRST, 5, 1.0, 2.0), (SECOND, 9, 5.5, 6.0)), members=MEMBERS, bound=3)
    assert verdict.longest_gap == 3.5
    assert len(verdict.too_long) == 1


@pytest.mark.parametrize(
    ("harm", "gap"),
    [
        (Harm(FIRST, "killed", 1.1, 1.1), 40.0),  # the owner's own, which the bound is for
        (Harm(SECOND, "stopped", 10.0, 15.0), 26.0),
        (Harm(SECOND, "stopped", 10.0, 32.0), 31.0),  # its session has ended meanwhile
        (Harm(SECOND, "killed", 10.0, 12.0), 31.0),
        (Harm(EVERYBODY, "no leader", 10.0, 13.0), 28.0),
        (Harm(EVERYBODY, "no leader", 0.0, 3.0), 38.0),
        (Harm(EVERYBODY, "no leader", 50.0, 53.0), 40.0),
        (Harm(EVERYBODY, "no answer", 10.0, 13.0), 40.0),
    ],
)
def test_it_counts_from_the_harm_to_an_heir_and_from_a_new_leader(harm: Harm, gap: float) -> None:
    found = spans((FIRST, 5, 0.5, 1.0), (THIRD, 9, 41.0, 42.0))
    assert judge(found, [harm], members=MEMBERS, lives=21).longest_gap == gap


def test_it_counts_from_the_return_of_the_next_owner() -> None:
    found = spans((FIRST, 5, 0.5, 1.0), (SECOND, 9, 41.0, 42.0))
    cut_off = Harm(SECOND, "cut off", 0.6, 31.0)
    assert judge(found, [cut_off], members=MEMBERS, lives=21).longest_gap == 10.0


def test_an_owner_that_comes_back_after_all_is_an_excuse_only_while_its_heir_is_hurt() -> None:
    found = spans((FIRST, 5, 0.5, 1.0), (FIRST, 9, 41.0, 42.0))
    killed, late = Harm(FIRST, "killed", 1.0, 40.0), Harm(SECOND, "delivered late", 25.0, 39.0)
    assert judge(found, [killed], members=MEMBERS, lives=21).longest_gap == 40.0
    assert judge(found, [killed, late], members=MEMBERS, lives=21).longest_gap == 2.0


def test_harm_to_a_member_that_is_not_due_is_no_excuse() -> None:
    found = spans((FIRST, 5, 0.5, 1.0), (SECOND, 9, 41.0, 42.0))
    assert judge(found, [Harm(THIRD, "stopped", 10.0, 15.0)], members=MEMBERS).longest_gap == 40.0


@pytest.mark.parametrize(
    ("harms", "needless"),
    [
        ([], 1),
        ([Harm(FIRST, "killed", 100.0, 100.0)], 0),
        ([Harm(SECOND, "stopped", 90.0, 95.0)], 0),  # it came back
        ([Harm(THIRD, "killed", 100.0, 100.0)], 1),
        ([Harm(FIRST, "killed", 60.0, 60.0)], 1),  # long ago
        ([Harm(FIRST, "killed", 130.0, 130.0)], 1),  # afterwards
        ([Harm(EVERYBODY, "no leader", 99.0, 101.0)], 1),
        ([Harm(EVERYBODY, "no leader", 99.0, 106.0)], 0),
    ],
)
def test_a_move_without_a_reason_is_found(harms: list[Harm], needless: int) -> None:
    found = spans((FIRST, 5, 1.0, 100.0), (SECOND, 9, 120.0, 125.0))
    verdict = judge(found, harms, members=MEMBERS, bound=BOUND, endures=5)
    assert (verdict.moves, len(verdict.needless)) == (1, needless)


def test_moves_before_all_had_joined_are_not_judged() -> None:
    found = spans((FIRST, 5, 1.0, 2.0), (SECOND, 9, 2.5, 3.0))
    assert judge(found, members=MEMBERS, since=10).moves == 0


def test_half_a_line_is_no_look(tmp_path: Path) -> None:
    look, file = Look(1.5, 2.5, {"0": 9, "12": 8}), tmp_path / "a.looks"
    for line in (str(look), str(look) + str(look)[:-3]):
        file.write_text(str(Look(1.0, 1.1, {})) + line)
        assert list(looks(file)) == [Look(1.0, 1.1, {}), look]
        assert last_look(file) == look
    assert last_look(tmp_path / "none") is None
