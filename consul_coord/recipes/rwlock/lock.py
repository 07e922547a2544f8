"""The calls of a lock for one writer or many readers, on both sides of it.

``attempt`` gets in, ``kind`` gives a place back, ``queue`` says who may enter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from consul_coord.errors import AlreadyHeld, InvalidArgument
from consul_coord.http.endpoints import kv
from consul_coord.http.endpoints import session as session_endpoint
from consul_coord.http.endpoints._keys import check_parent
from consul_coord.http.retry import ask, perform
from consul_coord.models import Holder, SessionSpec, TxnOp
from consul_coord.models._validate import breaking, uint64
from consul_coord.models.reply import CONSISTENT
from consul_coord.models.session import check_spec
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.limits import ANY_SESSION, check_value
from consul_coord.recipes.contend.recipe import Recipe
from consul_coord.recipes.rwlock import queue as rwqueue
from consul_coord.recipes.rwlock.attempt import RwAttempt
from consul_coord.recipes.rwlock.kind import RwKind
from consul_coord.recipes.rwlock.queue import MODES

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import Contender
    from consul_coord.recipes.contend.queue import Look
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.rwlock.queue import Mode
    from consul_coord.recipes.session.pool import SessionPool


class RwSide(Recipe["SessionPool"]):
    """The read or the write side of one lock object.

    All sides for one key and one spec share a client's sessions.
    """

    def __init__(
        self,
        key: str,
        mode: Mode,
        *,
        value: bytes | None,
        flags: int,
        session: SessionSpec | None,
    ) -> None:
        super().__init__(key, one="hold")
        self.base = rwqueue.base_of(check_parent(key))
        self.mode: Mode = mode
        self._value = value

        def join(value: bytes) -> tuple[TxnOp, ...]:
            return rwqueue.joining(self.base, ANY_SESSION, rwqueue.marked(mode, value), flags=flags)

        check_value((key,), value or b"", (join,))
        self._flags = flags
        self._spec = session

    def attempt(self, io: IO, client: Shared, *, timeout: float | None) -> RwAttempt:
        """Return one call of ``acquire``. Raises AlreadyHeld when the thread or task is in already."""
        self._refuse_owner_of_a_hold(client, io.owner())
        return RwAttempt(
            io,
            client,
            self.with_client(client),
            base=self.base,
            mode=self.mode,
            value=client.name if self._value is None else self._value,
            flags=self._flags,
            timeout=timeout,
        )

    def _begin(self, client: Shared) -> SessionPool:
        """Return where the sessions come from."""
        return client.pools.pool(waitqueue.directory(self.base), self._spec, behavior="release")

    def _refuse_owner_of_a_hold(self, client: Shared, owner: object) -> None:
        """Raise AlreadyHeld for a thread or task that would wait for itself, or let a writer do so."""
        if self._held_by(client, owner):
            client.holds.register.sweep()  # perhaps the caller has just dropped it
        for session, mode in self._held_by(client, owner):
            message = f"this thread or task is in {self.name!r} already, to {mode}: release that first"
            raise AlreadyHeld(message, key=self.name, session=session)

    def _held_by(self, client: Shared, owner: object) -> list[tuple[str, Mode]]:
        return [
            (hold.session, hold.kind.mode)
            for hold in client.holds.all()
            if isinstance(hold.kind, RwKind) and hold.kind.lets_in(self.name, owner)
        ]


def sides(
    key: str, *, value: bytes | None, flags: int, session: SessionSpec | str | None
) -> tuple[RwSide, RwSide]:
    """Return the read and the write side of one lock object.

    Raises InvalidArgument for the id of a session.
    """
    if isinstance(session, str):
        message = "a ReadWriteLock makes a session for each hold: give a SessionSpec, or none"
        raise InvalidArgument(message)
    check_spec(session)
    uint64("flags", flags)
    read, write = (RwSide(key, mode, value=value, flags=flags, session=session) for mode in MODES)
    return read, write


async def holders(io: IO, client: Shared, side: RwSide) -> tuple[Holder, ...]:
    """Return who is in, as the leader has it."""
    return tuple(
        Holder(
            waitqueue.session_of(pair),
            value=rwqueue.value_of(pair),
            fence=pair.create_index,
            since_index=pair.modify_index,
        )
        for pair in rwqueue.inside(await _queue(io, client, side))
        if pair.session is not None
    )


async def contenders(io: IO, client: Shared, side: RwSide) -> tuple[Contender, ...]:
    """Return who waits to get in, the next one first."""
    look = await _queue(io, client, side)
    inside = rwqueue.inside(look)
    return waitqueue.shown((pair for pair in look.live if pair not in inside), rwqueue.value_of)


async def break_in(
    io: IO, client: Shared, side: RwSide, expected_session: str, *, how: Literal["release", "destroy"]
) -> bool:
    """Put out a session that is in: its place only, or with all it has; False when it is not in.

    Raises InvalidArgument.
    """
    breaking(expected_session, how)
    deadline = io.now() + client.timeout
    for pair in rwqueue.inside(await _queue(io, client, side)):
        if pair.session == expected_session:
            call = (
                kv.delete(pair.key, cas=pair.modify_index)
                if how == "release"
                else session_endpoint.destroy(expected_session)
            )
            return await perform(io, call, deadline=deadline)
    return False


async def is_unused(io: IO, client: Shared, side: RwSide) -> bool:
    """Return whether nobody is in, dead or alive, and nobody waits: nothing is left on the server then."""
    return not (await _queue(io, client, side)).places


async def _queue(io: IO, client: Shared, side: RwSide) -> Look:
    call = kv.list_pairs(waitqueue.directory(side.base), options=CONSISTENT)
    pairs = (await ask(io, call, timeout=client.timeout)).value
    return waitqueue.read(side.base, pairs)
