"""Members that are killed and stopped: never two believers of one partition, and never none for long."""

from __future__ import annotations

import random
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from consul_coord import SessionSpec, failover_bound
from tests.election.waiting import until
from tests.partition.believing import Belief, Harm, Setting, heirs, judge

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SETTLING = 1.0
"""Seconds that a view of the group, its settling and a tick may take besides."""


class Crowd:
    """Members as processes, some of which are hurt."""

    def __init__(self, setting: Setting, count: int) -> None:
        self.setting = setting
        self.members = {f"m{number}": setting.start(f"m{number}") for number in range(count)}
        self.harms: list[Harm] = []
        for process in self.members.values():
            _joined(process)

    def kill(self, name: str, successor: str) -> None:
        """Kill a member, and start another one, perhaps under its name."""
        process = self.members.pop(name)
        now = time.monotonic()
        self.harms.append(Harm(name, now, now))
        process.kill()
        process.communicate()
        self.members[successor] = self.setting.start(successor)

    def stop(self, name: str, seconds: float) -> None:
        """Stop a member for a while."""
        began = time.monotonic()
        self.members[name].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.members[name].send_signal(signal.SIGCONT)
        self.harms.append(Harm(name, began, time.monotonic()))

    def end(self) -> None:
        for process in self.members.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()

    def until_all_owned(self) -> None:
        """Wait until each partition has been believed in lately."""

        def owned() -> bool:
            now = time.monotonic()
            lately = {belief.partition for belief in self.setting.beliefs() if belief.at > now - 0.5}
            return len(lately) == self.setting.partitions

        until(owned, "all partitions have an owner")


def _joined(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"


def test_no_partition_has_two_believers_when_members_are_killed_and_stopped(
    address: str, prefix: str, tmp_path: Path
) -> None:
    setting = Setting(address=address, prefix=prefix, partitions=8, ttl=1.0, tick=0.01, folder=tmp_path)
    crowd = Crowd(setting, 3)
    try:
        crowd.until_all_owned()
        crowd.kill("m0", "m3")
        crowd.stop("m1", 3.5)  # longer than its session lasts: it wakes up as a former owner
        crowd.until_all_owned()
    finally:
        crowd.end()
    verdict = judge(setting.beliefs())
    assert verdict.two_believers == []
    assert any(len(owners) > 1 for owners in verdict.owners.values())


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_partition_has_two_believers_in_a_quarter_of_an_hour(
    agent_address: str, prefix: str, tmp_path: Path, search_seed: int
) -> None:
    """30 members, 64 partitions, one of the members hurt all the time: killed, or stopped for a while."""
    dice = random.Random(search_seed)
    ttl = 10.0
    setting = Setting(address=agent_address, prefix=prefix, partitions=64, ttl=ttl, tick=0.1, folder=tmp_path)
    crowd = Crowd(setting, 30)
    try:
        crowd.until_all_owned()
        end = time.monotonic() + 900
        while time.monotonic() < end:
            name = dice.choice(sorted(crowd.members))
            if dice.random() < 0.5:
                crowd.kill(name, name)
            else:
                crowd.stop(name, dice.uniform(0.1, 2.5 * ttl))
            time.sleep(dice.uniform(0, ttl))
        crowd.until_all_owned()
    finally:
        crowd.end()
    verdict = judge(setting.beliefs(), crowd.harms)
    sys.stdout.write(f"{len(crowd.harms)} harms; {verdict.longest_gap:.1f} s without an owner, at most\n")
    assert verdict.two_believers == []
    assert verdict.longest_gap <= failover_bound(SessionSpec(ttl=ttl, lock_delay=ttl)) + SETTLING


def test_the_judge_finds_a_second_believer() -> None:
    beliefs = [Belief(1.0, "0", 5, "a"), Belief(1.2, "0", 9, "b"), Belief(1.3, "0", 5, "a")]
    verdict = judge(beliefs)
    assert verdict.two_believers == [(beliefs[1], beliefs[2])]
    assert judge(beliefs[:2]).two_believers == []


def test_the_judge_measures_how_long_a_partition_had_no_owner() -> None:
    beliefs = [Belief(1.0, "0", 5, "a"), Belief(2.0, "1", 6, "a"), Belief(4.5, "0", 9, "b")]
    assert judge(beliefs).longest_gap == 3.5
    assert judge(beliefs).owners == {"0": {"a", "b"}, "1": {"a"}}


def test_the_judge_counts_from_the_harm_to_an_heir() -> None:
    first, second, third = heirs("0", ["a", "b", "c"])
    beliefs = [Belief(1.0, "0", 5, first), Belief(41.0, "0", 9, third)]
    own = Harm(first, 1.1, 1.1)
    assert judge(beliefs, [own]).longest_gap == 40.0
    assert judge(beliefs, [own, Harm(second, 10.0, 15.0)]).longest_gap == 26.0
    assert (
        judge([beliefs[0], Belief(41.0, "0", 9, second)], [own, Harm(third, 10.0, 15.0)]).longest_gap == 40.0
    )
