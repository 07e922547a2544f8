"""The rules of the wait queue, broken one at a time: what somebody might have written instead.

Each mutation patches the recipes so that one rule is not kept, and nothing else is changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import send_once
from consul_coord.models import KVPair, ReadOptions, TxnOp
from consul_coord.recipes.cleanup import unlock
from consul_coord.recipes.cleanup.reaper import Reaper, RemoveContender, Sweep
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.queue import Adopt, Follow, Lead, Look, Rejoin
from consul_coord.recipes.lock import attempt as contend
from consul_coord.recipes.lock.attempt import Attempt
from consul_coord.recipes.lock.kind import LockKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest

    from consul_coord.io import IO
    from consul_coord.models import Result
    from consul_coord.recipes.contend.queue import Verdict
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.recipes.session.keeping import SessionSource

    Mutate = Callable[[pytest.MonkeyPatch], None]

_NOTHING: Final = TxnOp.get_tree("nothing/at/all/")
"""An operation that always succeeds and returns nothing."""


def barge_without_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TxnOp, "check_not_exists", lambda key: _NOTHING)


def never_barge(patch: pytest.MonkeyPatch) -> None:
    async def barge(self: Attempt) -> None:
        return None

    patch.setattr(Attempt, "_barge_if_allowed", barge)


def repeat_a_join_from_the_start(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._join

    async def join(self: Attempt) -> Look | None:
        if self.joined:
            await self._withdraw(self._limit())
        return await real(self)

    patch.setattr(Attempt, "_join", join)


def look_before_joining(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._join

    async def join(self: Attempt) -> Look | None:
        before = await self._look()
        after = await real(self)
        if after is None:
            return None
        own = tuple(pair for pair in after.live if pair.session == self.session)
        return Look(before.key, before.pair, (*before.live, *own), before.dead)

    patch.setattr(Attempt, "_join", join)


def _judging(change: Callable[[Look, str, Verdict], Verdict]) -> Mutate:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        real = waitqueue.judge
        patch.setattr(waitqueue, "judge", lambda look, session: change(look, session, real(look, session)))

    mutate.__name__ = change.__name__
    return mutate


def _never_adopt(look: Look, session: str, verdict: Verdict) -> Verdict:
    return Rejoin() if isinstance(verdict, Adopt) else verdict


def _missing_is_head(look: Look, session: str, verdict: Verdict) -> Verdict:
    if not isinstance(verdict, Rejoin):
        return verdict
    own = KVPair(waitqueue.contender_key(look.key, session), session=session, modify_index=1)
    held = look.pair if look.pair is not None and look.pair.session is not None else None
    return Lead(own, held)


def _follow_the_head(look: Look, session: str, verdict: Verdict) -> Verdict:
    return Follow(verdict.own, look.live[0], verdict.position) if isinstance(verdict, Follow) else verdict


def leave_the_dead(patch: pytest.MonkeyPatch) -> None:
    real = Reaper.add

    def add(self: Reaper, duty: Any, *, after: float = 0.0) -> None:
        if not isinstance(duty, RemoveContender):
            real(self, duty, after=after)

    patch.setattr(Reaper, "add", add)


def watch_from_now(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._watch

    async def watch(self: Attempt, key: str, index: int) -> Result[KVPair | None] | None:
        now = await send_once(self.io, kv.get(key), deadline=self._limit())
        return await real(self, key, now.index)

    patch.setattr(Attempt, "_watch", watch)


def look_before_a_take(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._take

    async def take(self: Attempt) -> Grant | None:
        await self._look()
        return await real(self)

    patch.setattr(Attempt, "_take", take)


def take_whatever_the_key_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attempt, "_holder", lambda self, pair: None)


def take_without_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contend, "TxnOp", _Unchecked)


def take_with_a_check_of_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contend, "TxnOp", _CheckedBySession)


class _Unchecked(TxnOp):
    """Operations without the check of an index."""

    __slots__ = ()

    @classmethod
    def check_index(cls, key: str, index: int) -> TxnOp:
        return _NOTHING


class _CheckedBySession(TxnOp):
    """Operations that check who holds a contender instead of which one it is."""

    __slots__ = ()

    @classmethod
    def check_index(cls, key: str, index: int) -> TxnOp:
        return TxnOp.check_session(key, key.rpartition("/")[2])


def repeat_a_take_blindly(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._take

    async def take(self: Attempt) -> Grant | None:
        try:
            return await real(self)
        except ConsulCoordError:
            return await real(self)

    patch.setattr(Attempt, "_take", take)


def watch_in_a_lock_delay(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._take

    async def take(self: Attempt) -> Grant | None:
        hold = await real(self)
        if self.blocker.kind == "lock_delay":
            pair = (await send_once(self.io, kv.get(self.plan.key), deadline=self._limit())).value
            await self._watch(self.plan.key, 1 if pair is None else pair.modify_index)
        return hold

    patch.setattr(Attempt, "_take", take)


def try_hard_in_a_lock_delay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contend, "FIRST_PAUSE", 0.02)
    patch.setattr(contend, "LONGEST_PAUSE", 0.02)


def unlock_without_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unlock, "TxnOp", _Unchecked)


def unlock_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unlock, "retryable", lambda error: False)


def let_the_next_begin_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    real = LockKind.give_back

    async def give_back(self: LockKind, io: IO, core: ClientState, hold: Grant, **options: Any) -> object:
        core.queues.leave(hold.ticket)
        return await real(self, io, core, hold, **options)

    patch.setattr(LockKind, "give_back", give_back)


def never_polite(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClientState, "note_queue", lambda self, look, session: None)


def polite_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClientState, "note_queue", lambda self, look, session: self.polite.add(look.key))


def give_up_in_the_other_order(patch: pytest.MonkeyPatch) -> None:
    real = unlock.withdraw

    async def withdraw(io: IO, *, key: str, session: str, flags: int, deadline: float) -> bool:
        consistent = ReadOptions(consistency="consistent")
        pair = (await send_once(io, kv.get(key, options=consistent), deadline=deadline)).value
        if pair is not None and pair.session == session:
            return await real(io, key=key, session=session, flags=flags, deadline=deadline)
        return await unlock._remove_own(io, waitqueue.contender_key(key, session), session, deadline)

    patch.setattr(contend, "withdraw", withdraw)


def remove_the_contender_only(patch: pytest.MonkeyPatch) -> None:
    async def withdraw(io: IO, *, key: str, session: str, flags: int, deadline: float) -> bool:
        return await unlock._remove_own(io, waitqueue.contender_key(key, session), session, deadline)

    patch.setattr(contend, "withdraw", withdraw)


def no_sweep(patch: pytest.MonkeyPatch) -> None:
    async def step(self: Sweep, io: IO, core: ClientState, *, deadline: float) -> None:
        return None

    patch.setattr(Sweep, "step", step)


def accept_any_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClientState, "last_fence", lambda self, key: None)


def deaf_to_the_sessions_end(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._watch

    async def watch(self: Attempt, key: str, index: int) -> Result[KVPair | None] | None:
        kept, self.kept = self.kept, None
        try:
            return await real(self, key, index)
        finally:
            self.kept = kept

    patch.setattr(Attempt, "_watch", watch)


def keep_a_session_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    def blocked_by(*args: object) -> str:
        return "unreachable"

    patch.setattr(contend, "blocked_by", blocked_by)


def leave_the_queue_when_refused(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._take

    async def take(self: Attempt) -> Grant | None:
        hold = await real(self)
        if hold is None:
            await self._withdraw(self._limit())
        return hold

    patch.setattr(Attempt, "_take", take)


def always_barge(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._barge_if_allowed

    async def barge(self: Attempt) -> Grant | None:
        self.may_barge = True
        return await real(self)

    patch.setattr(Attempt, "_barge_if_allowed", barge)


def no_way_without_a_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attempt, "_denied_at", lambda self, error, op_index: False)


def an_unreadable_queue_is_an_empty_one(patch: pytest.MonkeyPatch) -> None:
    real = Attempt._read

    def read(self: Attempt, pairs: Iterable[KVPair]) -> Look:
        look = real(self, pairs)
        own = self.contender
        return Look(look.key, look.pair, (own,), look.dead) if own is not None and not look.live else look

    patch.setattr(Attempt, "_read", read)


def contend_with_a_session_of_its_own(patch: pytest.MonkeyPatch) -> None:
    need, lock_op = Attempt._need_session, Attempt._lock_op
    second: dict[ClientState, SessionSource] = {}

    async def need_both(self: Attempt) -> None:
        await need(self)
        source = second.setdefault(self.core, self.core.source(self.core.spec))
        await source.live(self.io, deadline=self._limit())

    def lock(self: Attempt, key: str) -> TxnOp:
        op = lock_op(self, key)
        return op if key != self.plan.key or self.kept is None else replace(op, session=self.kept.id)

    def session(self: Attempt) -> str:
        source = second.get(self.core)
        return "" if source is None or source.current is None else source.current.id

    patch.setattr(Attempt, "_need_session", need_both)
    patch.setattr(Attempt, "_lock_op", lock)
    patch.setattr(Attempt, "session", property(session))


missing_is_head: Final = _judging(_missing_is_head)
never_adopt: Final = _judging(_never_adopt)
follow_the_head: Final = _judging(_follow_the_head)
