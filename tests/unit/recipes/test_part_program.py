"""A partition that is lost is owned again, as often as that happens, and nothing is kept of each time.

An owner that is busy with an earlier function hears of no partition that has gone meanwhile.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pytest

from consul_coord.errors import PermissionDenied
from consul_coord.events import Lost
from consul_coord.http.messages import Response
from consul_coord.models import LossReason, SessionSpec
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.partition.part import Part
from tests.support.counted import Counted
from tests.support.fake_io import FakeIO
from tests.support.replies import SESSION, entry, ok, pairs, txn_done, txn_failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.http.messages import Request
    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant, Handle

KEY = "g/partitions/a"
TIMES = 3


class Owner:
    """Is told, and called, at once."""

    handover = 1.0

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.reports: list[tuple[str, BaseException]] = []

    def acquired(self, _: str, hold: Grant) -> None:
        self.told.append(("acquired", hold.fence))

    def released(self, _: str, hold: Grant) -> None:
        self.told.append(("released", hold.fence))

    def report(self, where: str, error: BaseException) -> None:
        self.reports.append((where, error))

    def in_order(self, function: Callable[[], object], _failed: object, *, until: object = None) -> None:
        function()


def test_a_part_that_is_owned_again_keeps_nothing_of_each_time() -> None:
    io, owner = FakeIO(), Owner()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    part = Part(core, "a", key=KEY, value=b"", told=owner, calls=owner)  # type: ignore[arg-type]
    leaving = part.leaving = Counted()
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", f"/v1/kv/{KEY}", pairs())
    fences = [10 * (number + 1) for number in range(1 + TIMES)]
    for fence in fences:
        io.expect("PUT", "/v1/txn", txn_done(entry(KEY, index=fence)))
    io.expect("PUT", "/v1/txn", txn_done(entry(KEY, session=None, index=99)))

    def lose() -> None:
        assert part.hold is not None
        part.hold.lose(LossReason.KEY_DELETED)

    for number in range(1 + TIMES):
        io.at(io.time + number + 0.1, lambda: io.run_spawned("take"))
    for number in range(TIMES):
        io.at(io.time + number + 0.2, lose)
    io.at(io.time + TIMES + 0.5, part.leave)
    io.run(part.run(io))
    assert owner.told == [(what, fence) for fence in fences for what in ("acquired", "released")]
    assert leaving.listening == 0
    assert not owner.reports


def test_a_part_that_may_not_be_taken_is_reported_and_tried_again() -> None:
    io, owner = FakeIO(), Owner()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    part = Part(core, "a", key=KEY, value=b"", told=owner, calls=owner)  # type: ignore[arg-type]
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    for answer in (txn_failed((1, "Permission denied")), txn_done(entry(KEY, index=10))):
        io.expect("GET", f"/v1/kv/{KEY}", pairs())
        io.expect("PUT", "/v1/txn", answer)
    io.expect("PUT", "/v1/txn", txn_done(entry(KEY, session=None, index=99)))
    for number in range(2):
        io.at(io.time + 0.5 + number, lambda: io.run_spawned("take"))
    io.at(io.time + 3.0, part.leave)
    io.run(part.run(io))
    assert owner.told == [("acquired", 10), ("released", 10)]
    ((where, error),) = owner.reports
    assert "'a'" in where
    assert isinstance(error, PermissionDenied)


def test_a_part_that_is_left_while_another_has_it_is_not_waited_for() -> None:
    """Else a member that stops would wait for the other one, and get the partition once more after that."""
    io, owner, ended = FakeIO(), Owner(), list[float]()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    part = Part(core, "a", key=KEY, value=b"", told=owner, calls=owner)  # type: ignore[arg-type]

    def look() -> None:
        (attempt,) = (each for each in io.spawned if each.name.startswith("take"))
        if attempt.cancelled:
            ended.append(io.time)
            attempt.done.set()

    io.at(io.time + 5.0, part.leave)
    io.at(io.time + 5.0, look)
    io.run(part.run(io))
    assert ended == [1005.0]
    assert owner.told == []


@pytest.mark.parametrize("end", ["it is left", "its client closes"])
def test_what_an_attempt_is_refused_for_once_it_is_over_is_no_trouble_to_report(end: str) -> None:
    io, owner = FakeIO(), Owner()
    core = ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0)
    part = Part(core, "a", key=KEY, value=b"", told=owner, calls=owner)  # type: ignore[arg-type]

    def refuse(_: Request) -> Response:
        part.leave() if end == "it is left" else core.closing.set()
        return Response(403, {}, b"Permission denied")

    io.expect("PUT", "/v1/session/create", refuse)
    io.at(io.time + 1.0, lambda: io.run_spawned("take"))
    io.run(part.run(io))
    assert (owner.told, owner.reports) == ([], [])


class Scripted(Part):
    """Owns the partition for a moment, or does not get it, as it is told to; it is left at the end."""

    def __init__(self, core: ClientState, *gets: bool) -> None:
        super().__init__(core, "a", key=KEY, value=b"", told=Owner(), calls=Owner())  # type: ignore[arg-type]
        self.gets = list(gets)
        self.tried_at: list[float] = []

    async def _acquire(self, io: IO) -> Handle | None:
        self.tried_at.append(io.now())
        gets = self.gets.pop(0)
        if not self.gets:
            self.leave()
        return cast("Handle", self) if gets else None

    async def _own(self, io: IO, handle: Handle) -> bool:
        return True


def test_pauses_between_failed_tries_grow_and_begin_anew_after_the_partition_was_owned() -> None:
    io, gets = FakeIO(), [*[False] * 4, True, False, False]
    part = Scripted(ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0), *gets)
    io.run(part.run(io))
    pauses = [later - before for before, later in pairwise(part.tried_at)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.0, 0.05])


@pytest.mark.parametrize("failures", [1, 3, 12])
def test_a_part_that_is_left_in_a_pause_has_ended_at_once(failures: int) -> None:
    """Else a member that stops, or gets another weight, would wait for nothing."""
    io = FakeIO()
    part = Scripted(ClientState(io, spec=SessionSpec(ttl=60.0), timeout=10.0), *[False] * (failures + 1))

    def look() -> None:
        part.leave() if len(part.tried_at) == failures else io.at(io.time + 0.01, look)

    look()
    io.run(part.run(io))
    assert io.time - part.tried_at[-1] <= 0.02
    assert len(part.tried_at) == failures


class BusyOwner(Owner):
    """Is called later, when an earlier function has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], object]] = []

    def in_order(self, function: Callable[[], object], _failed: object, *, until: object = None) -> None:
        self.waiting.append(function)

    def become_free(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def taken(io: FakeIO, owner: Owner) -> Part:
    """Return a part that is taken at fence 10 at its first try, in 0.1 s."""
    core = ClientState(io, spec=SessionSpec(ttl=60.0, lock_delay=60.0), timeout=10.0)
    io.expect("PUT", "/v1/session/create", ok({"ID": SESSION}))
    io.expect("GET", f"/v1/kv/{KEY}", pairs())
    io.expect("PUT", "/v1/txn", txn_done(entry(KEY, index=10)))
    io.at(io.time + 0.1, lambda: io.run_spawned("take"))
    return Part(core, "a", key=KEY, value=b"", told=owner, calls=owner)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["handed over", "lost"])
def test_an_owner_that_was_busy_all_the_time_does_not_hear_of_a_partition_that_has_gone(end: str) -> None:
    io, owner = FakeIO(), BusyOwner()
    part = taken(io, owner)
    if end == "handed over":
        io.expect("PUT", "/v1/txn", txn_done(entry(KEY, session=None, index=99)))

    def finish() -> None:
        assert part.hold is not None
        if end == "lost":
            part.hold.lose(LossReason.KEY_DELETED)
        part.leave()

    io.at(io.time + 0.2, finish)
    io.run(part.run(io))
    owner.become_free()
    assert owner.told == []


def test_an_owner_that_is_busy_for_a_moment_hears_of_both() -> None:
    io, owner = FakeIO(), BusyOwner()
    part = taken(io, owner)
    io.expect("PUT", "/v1/txn", txn_done(entry(KEY, session=None, index=99)))
    io.at(io.time + 0.2, part.leave)
    io.at(io.time + 0.2 + Owner.handover / 2, owner.become_free)
    io.run(part.run(io))
    assert owner.told == [("acquired", 10), ("released", 10)]


def test_who_owns_a_partition_notices_the_end_of_its_lease_by_itself() -> None:
    """Perhaps nobody else looks at the hold then."""
    io, owner = FakeIO(), Owner()
    part = taken(io, owner)

    def leave() -> None:
        part.leave()
        for each in io.spawned:
            each.done.set()  # it was about to take it again

    io.at(io.time + 58.0, leave)
    io.run(part.run(io))
    assert owner.told == [("acquired", 10), ("released", 10)]
    assert owner.reports == []
    assert [event.reason for event in io.seen(Lost)] == [LossReason.EXPIRED]
