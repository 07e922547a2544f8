"""The whole of what the demo says of a course of things, whose actors are played."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from consul_coord import SessionSpec
from consul_coord.cli.demo import stage
from consul_coord.cli.demo.stage import WIDTH, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(eq=False)
class Player:
    """A worker that does what it is told, and notes that."""

    name: str
    pid: int = 77
    code: int = 0
    done: list[str] = field(default_factory=list[str])

    def go_on(self) -> None:
        self.done.append("goes on")

    def kill(self) -> None:
        self.done.append("is killed")
        self.code = -9

    def end(self) -> int:
        return self.code


class Course:
    """A stage, whose clock is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.now = 100.0
        monkeypatch.setattr(stage, "time", SimpleNamespace(monotonic=lambda: self.now))
        spec = SessionSpec(ttl=4.0, lock_delay=5.0)
        self._capsys = capsys
        self.stage = cast("Any", Stage(address="127.0.0.1:8500", key="demo/lock", spec=spec, environ={}))
        self.players = [Player(f"worker-{number}") for number in range(1, 4)]
        self.stage._actors = self.players

    def hear(self, player: Player, what: str, **news: object) -> None:
        self.now += 0.25
        self.stage._hear(player, {"what": what, "time": self.now, **news})

    def waits(self, player: Player, kind: str, *, holders: tuple[str, ...] = (), position: int = 0) -> None:
        self.hear(player, "waiting", blocker={"kind": kind, "position": position}, holders=holders)

    def works(self) -> None:
        """Let the time of a hold pass."""
        self.now += stage.WORK
        self.stage._do_what_is_due()

    def wrote(self, *holds: tuple[str, int, float, float | None]) -> None:
        """Have the log of these holds."""
        for worker, fence, start, end in holds:
            notes = [{"worker": worker, "fence": fence, "what": "start", "time": start}]
            notes += [{"worker": worker, "fence": fence, "what": "end", "time": end}] * (end is not None)
            with self.stage._log.open("a") as log:
                log.writelines(json.dumps(note) + "\n" for note in notes)

    def said(self) -> list[str]:
        lines = self._capsys.readouterr().out.splitlines()
        assert max(map(len, lines), default=0) <= WIDTH
        return lines


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Course]:
    course = Course(monkeypatch, capsys)
    with course.stage:
        yield course


def test_each_report_has_its_line(course: Course) -> None:
    first, second, third = course.players
    course.hear(first, "started")
    course.hear(first, "acquired", fence=7)
    course.waits(second, "held")  # a refused try, which names no holder
    course.waits(second, "held", holders=("worker-1",))
    course.waits(third, "queued", position=2)
    course.waits(third, "queued")
    course.waits(third, "unreachable")
    course.waits(third, "not_queued")
    course.hear(first, "jeopardy", error="no answer")
    course.hear(first, "lost", reason="expired")
    assert course.said() == [
        "  0.25 s  worker-1  started   pid 77",
        "  0.50 s  worker-1  acquired  fence 7",
        "  1.00 s  worker-2  waiting   held by worker-1",
        "  1.25 s  worker-3  waiting   place 2 in the queue",
        "  1.50 s  worker-3  waiting   place 1 in the queue",
        "  1.75 s  worker-3  waiting   no answer from the server",
        "  2.00 s  worker-3  waiting   not_queued",
        "  2.25 s  worker-1  jeopardy  no answer",
        "  2.50 s  worker-1  lost      expired",
    ]


def test_a_play_in_which_all_goes_well(course: Course) -> None:
    first, second, third = course.players
    course.hear(first, "acquired", fence=7)
    course.works()
    course.hear(second, "acquired", fence=9)  # before the report of the release
    course.hear(first, "releases")
    course.works()
    course.waits(third, "lock_delay")
    course.hear(third, "acquired", fence=12)
    course.works()
    course.hear(third, "releases")
    for player in course.players:
        course.stage._left(player)
    assert [player.done for player in course.players] == [["goes on"], ["is killed"], ["goes on"]]
    course.wrote(("worker-1", 7, 100.25, 101.0), ("worker-2", 9, 101.0, None), ("worker-3", 12, 107.5, 108.0))
    course.stage._deaths = {"worker-2": 101.75}
    assert course.stage._judge()
    assert course.said() == [
        "  0.25 s  worker-1  acquired  fence 7",
        "  1.25 s  worker-1  releases",
        "  1.00 s  worker-2  acquired  fence 9",
        "  1.75 s  worker-2  killed    by SIGKILL, while it holds the lock; its session",
        "                              ends 4 to 8 s after its last renewal, and its lock",
        "                              is free 5 s later",
        "  2.00 s  worker-3  waiting   the killed worker's session has ended; Consul",
        "                              keeps the key locked for the lock-delay",
        "  2.25 s  worker-3  acquired  fence 12",
        "  3.00 s  worker-3  releases",
        "All is well: 3 holds, none overlapped another; fences rose: 7 < 9 < 12. worker-3",
        "took over 5.75 s after worker-2 was killed.",
        "Next: hold a lock of your own Consul while a command runs:",
        "  consul-coord lock jobs/nightly -- ./nightly.sh",
    ]


def test_what_goes_wrong_is_said_and_nothing_else(course: Course) -> None:
    first, second, _ = course.players
    second.code = 3
    course.hear(second, "acquired", fence=7)
    course.stage._left(second)
    course.hear(first, "acquired", fence=9)
    course.wrote(("worker-2", 7, 100.25, None), ("worker-1", 9, 100.5, 101.0))
    assert not course.stage._judge()
    assert course.said() == [
        "  0.25 s  worker-2  acquired  fence 7",
        "  0.25 s  worker-2  failed    exit code 3",
        "  0.50 s  worker-1  acquired  fence 9",
        "WRONG: worker-2 failed with exit code 3",
        "WRONG: worker-3 had the lock 0 times instead of once",
    ]


def test_a_play_without_a_death_proves_nothing(course: Course) -> None:
    course.players[1:] = []
    course.wrote(("worker-1", 7, 100.25, 101.0))
    assert not course.stage._judge()
    assert course.said() == ["WRONG: nobody was killed"]


def test_nobody_took_over(course: Course) -> None:
    course.players[1:] = []
    course.stage._deaths = {"worker-1": 101.0}
    course.wrote(("worker-1", 7, 100.25, None))
    assert course.stage._judge()
    assert "Nobody came after worker-1." in " ".join(course.said())
