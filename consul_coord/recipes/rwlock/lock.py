"""What can be done with a lock for one writer or many readers; both sides of it.

How one gets in is told in ``rw_contend``, how a place is given back in ``rw_place``, who may enter in
``rwqueue``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from consul_coord.errors import AlreadyHeld, InvalidArgument
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.retry import perform
from consul_coord.models import Contender, Holder, ReadOptions, SessionSpec
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.rwlock.attempt import RwAttempt

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.recipes.client import ClientState
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.lock.lock import LockPlan
    from consul_coord.recipes.rwlock.queue import Mode
    from consul_coord.recipes.session.pool import SessionPool

_CONSISTENT = ReadOptions(consistency="consistent")


class RwSide(LockObject):
    """The read or the write side of one lock object.

    Both share their sessions, and know of each other's holds.
    """

    other: RwSide

    def __init__(self, plan: LockPlan, mode: Mode) -> None:
        super().__init__(plan)
        self.mode: Mode = mode
        self.name = rwqueue.key_of(plan.key)
        """The key as the user gave it."""
        self._sessions: tuple[ClientState, SessionPool] | None = None

    def attempt(self, io: IO, core: ClientState, *, timeout: float | None) -> RwAttempt:
        """Return one call of ``acquire``."""
        return RwAttempt(io, core, self, timeout=timeout)

    def sessions(self, core: ClientState) -> SessionPool:
        """Return where the sessions come from: the same for as long as the client's coordinator is."""
        if self._sessions is None or self._sessions[0] is not core:
            own = self.plan.session
            plain = replace(core.spec, node_checks=(), service_checks=())
            spec = own if isinstance(own, SessionSpec) else plain
            directory = waitqueue.directory(self.plan.key)
            self._sessions = (core, core.slot_sessions(directory, replace(spec, behavior="delete")))
            self.other._sessions = self._sessions  # noqa: SLF001 - one object in two halves
        return self._sessions[1]

    def refuse_owner_of_a_hold(self, owner: object) -> None:
        """Raise AlreadyHeld when the thread or task is in already.

        It would wait for itself, or let a writer do so.
        """
        for side in (self, self.other):
            hold = side.again(owner)
            if hold is not None and not hold.ended:
                message = (
                    f"this thread or task is in {self.name!r} already, to {side.mode}: release that first"
                )
                raise AlreadyHeld(message, key=self.name, session=hold.session)


def sides(plan: LockPlan) -> tuple[RwSide, RwSide]:
    """Return the read and the write side of one lock object.

    Raises InvalidArgument for a session with checks.
    """
    spec = plan.session
    if isinstance(spec, str) or (spec is not None and (spec.node_checks or spec.service_checks)):
        message = (
            "a ReadWriteLock makes sessions of its own, without checks: these could end one at any moment, "
            "and no lock-delay protects a place in the queue. Give a SessionSpec without checks, or none"
        )
        raise InvalidArgument(message)
    read, write = RwSide(plan, "read"), RwSide(plan, "write")
    read.other, write.other = write, read
    return read, write


async def holders(io: IO, core: ClientState, side: RwSide) -> tuple[Holder, ...]:
    """Return who is in, as the leader has it."""
    return tuple(
        Holder(
            waitqueue.session_of(pair),
            value=rwqueue.value_of(pair),
            fence=pair.create_index,
            since_index=pair.modify_index,
        )
        for pair in rwqueue.inside(await _queue(io, core, side))
    )


async def contenders(io: IO, core: ClientState, side: RwSide) -> tuple[Contender, ...]:
    """Return who waits to get in, the next one first."""
    look = await _queue(io, core, side)
    waiting = look.live[len(rwqueue.inside(look)) :]
    return tuple(
        Contender(
            waitqueue.session_of(pair),
            place,
            value=rwqueue.value_of(pair),
            create_index=pair.create_index,
            modify_index=pair.modify_index,
        )
        for place, pair in enumerate(waiting)
    )


async def break_in(
    io: IO, core: ClientState, side: RwSide, expected_session: str, *, how: Literal["release", "destroy"]
) -> bool:
    """Put out a session that is in: its place only, or with all it has; False when it is not in."""
    deadline = io.now() + core.timeout
    for pair in rwqueue.inside(await _queue(io, core, side)):
        if pair.session == expected_session:
            call = (
                kv.delete(pair.key, cas=pair.modify_index)
                if how == "release"
                else session_endpoint.destroy(expected_session)
            )
            return await perform(io, call, deadline=deadline, attempt=core.timeout)
    return False


async def is_unused(io: IO, core: ClientState, side: RwSide) -> bool:
    """Return whether nobody is in and nobody waits: nothing is left on the server then."""
    return not (await _queue(io, core, side)).live


async def _queue(io: IO, core: ClientState, side: RwSide) -> Look:
    call = kv.list_pairs(waitqueue.directory(side.plan.key), options=_CONSISTENT)
    pairs = (await perform(io, call, deadline=io.now() + core.timeout, attempt=core.timeout)).value
    return waitqueue.read(side.plan.key, pairs)
