"""The rules of the wait queue, broken one at a time: what somebody might have written instead.

Each mutation patches the recipes so that one rule is not kept, and nothing else is changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from consul_coord.errors import ConsulCoordError
from consul_coord.http.endpoints import kv
from consul_coord.http.retry import Failures, send_once
from consul_coord.models import KVPair, TxnOp
from consul_coord.recipes.cleanup import unlock
from consul_coord.recipes.cleanup.reaper import Reaper
from consul_coord.recipes.cleanup.tasks import RemoveKey, Sweep
from consul_coord.recipes.contend import attempt as skeleton
from consul_coord.recipes.contend import queue as waitqueue
from consul_coord.recipes.contend.queue import Look, QueueMemory, Rejoin
from consul_coord.recipes.hold.holds import Latest
from consul_coord.recipes.lock import attempt as contend
from consul_coord.recipes.lock import plan
from consul_coord.recipes.lock import waitqueue as lockqueue
from consul_coord.recipes.lock.attempt import LockAttempt
from consul_coord.recipes.lock.keys import LockKind
from consul_coord.recipes.lock.waitqueue import Adopt, Follow, Gone, Lead
from consul_coord.recipes.watch.engine import Watches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest

    from consul_coord.io import IO
    from consul_coord.models import Result
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.hold.grant import Ending, Grant, Handle
    from consul_coord.recipes.lock.waitqueue import Verdict
    from consul_coord.recipes.session.keeping import SessionSource

    Mutate = Callable[[pytest.MonkeyPatch], None]

_NOTHING: Final = TxnOp.get_tree("nothing/at/all/")
"""An operation that always succeeds and returns nothing."""


def barge_without_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TxnOp, "check_not_exists", lambda key: _NOTHING)


def never_barge(patch: pytest.MonkeyPatch) -> None:
    async def no_way(self: LockAttempt) -> None:
        return None

    patch.setattr(LockAttempt, "_way_past_the_queue", no_way)


def repeat_a_join_from_the_start(patch: pytest.MonkeyPatch) -> None:
    real = LockAttempt._join

    async def join(self: LockAttempt) -> Look | None:
        if self.asked:
            await self._withdraw(self.limit)
        return await real(self)

    patch.setattr(LockAttempt, "_join", join)


def look_before_joining(patch: pytest.MonkeyPatch) -> None:
    real = LockAttempt._join

    async def join(self: LockAttempt) -> Look | None:
        before = await self._look()
        after = await real(self)
        if after is None:
            return None
        own = tuple(pair for pair in after.live if pair.session == self.session)
        return Look(before.key, before.pair, (*before.live, *own), before.dead)

    patch.setattr(LockAttempt, "_join", join)


def _judging(change: Callable[[Look, str, Verdict], Verdict]) -> Mutate:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        real = lockqueue.judge
        patch.setattr(contend, "judge", lambda look, session: change(look, session, real(look, session)))

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
        if not isinstance(duty, RemoveKey):
            real(self, duty, after=after)

    patch.setattr(Reaper, "add", add)


def watch_from_now(patch: pytest.MonkeyPatch) -> None:
    real = Watches.change

    async def change(
        self: Watches, io: IO, key: str, index: int, *, deadline: float, **options: Any
    ) -> Result[KVPair | None] | None:
        now = await send_once(io, kv.get(key), deadline=deadline)
        return await real(self, io, key, now.index, deadline=deadline, **options)

    patch.setattr(Watches, "change", change)


def look_before_a_take(patch: pytest.MonkeyPatch) -> None:
    real = LockAttempt._take

    async def take(self: LockAttempt) -> Handle | None:
        await self._look()
        return await real(self)

    patch.setattr(LockAttempt, "_take", take)


def take_whatever_the_key_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LockAttempt, "_holder", lambda self, pair: None)


def take_without_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "TxnOp", _Unchecked)


def take_with_a_check_of_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "TxnOp", _CheckedBySession)


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
    real = LockAttempt._take

    async def take(self: LockAttempt) -> Handle | None:
        try:
            return await real(self)
        except ConsulCoordError:
            return await real(self)

    patch.setattr(LockAttempt, "_take", take)


def watch_in_a_lock_delay(patch: pytest.MonkeyPatch) -> None:
    real = LockAttempt._take

    async def take(self: LockAttempt) -> Handle | None:
        handle = await real(self)
        if self.blocker.kind == "lock_delay":
            pair = (await send_once(self.io, kv.get(self.plan.key), deadline=self.limit)).value
            await self._watch(self.plan.key, 1 if pair is None else pair.modify_index)
        return handle

    patch.setattr(LockAttempt, "_take", take)


def try_hard_in_a_lock_delay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(skeleton, "FIRST_PAUSE", 0.02)
    patch.setattr(skeleton, "LONGEST_PAUSE", 0.02)


def unlock_without_a_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(unlock, "TxnOp", _Unchecked)


def unlock_once(patch: pytest.MonkeyPatch) -> None:
    class Once(Failures):
        async def pause(self, error: ConsulCoordError) -> None:
            raise error

    patch.setattr(unlock, "Failures", Once)


def let_the_next_begin_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    real = LockKind.give_back

    async def give_back(self: LockKind, io: IO, hold: Grant, *, deadline: float) -> Ending:
        self._keys.leave()
        return await real(self, io, hold, deadline=deadline)

    patch.setattr(LockKind, "give_back", give_back)


def never_polite(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueMemory, "saw_waiters", lambda self, key, waiting: None)


def polite_for_ever(patch: pytest.MonkeyPatch) -> None:
    real = QueueMemory.saw_waiters
    patch.setattr(QueueMemory, "saw_waiters", lambda self, key, waiting: real(self, key, waiting=True))


def give_up_in_the_other_order(patch: pytest.MonkeyPatch) -> None:
    real = unlock.withdraw

    async def withdraw(io: IO, *, key: str, session: str, deadline: float, **options: Any) -> bool:
        pair = await unlock.read(io, key, deadline)
        if pair is None or pair.session != session:
            key = "nothing/at/all"
        return await real(io, key=key, session=session, deadline=deadline, **options)

    patch.setattr(contend, "withdraw", withdraw)


def remove_the_contender_only(patch: pytest.MonkeyPatch) -> None:
    real = unlock.withdraw

    async def withdraw(io: IO, *, key: str, **options: Any) -> bool:
        return await real(io, key="nothing/at/all", **options)

    patch.setattr(contend, "withdraw", withdraw)


def no_sweep(patch: pytest.MonkeyPatch) -> None:
    async def step(self: Sweep, io: IO, *, deadline: float) -> None:
        return None

    patch.setattr(Sweep, "step", step)


def accept_any_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Latest, "get", lambda self, key, *_: 0)


def deaf_to_the_sessions_end(patch: pytest.MonkeyPatch) -> None:
    real = Watches.change

    async def change(
        self: Watches, *args: Any, until: object, **options: Any
    ) -> Result[KVPair | None] | None:
        return await real(self, *args, until=None, **options)

    patch.setattr(Watches, "change", change)


def keep_a_session_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    def blocked_by(*args: object) -> str:
        return "unreachable"

    patch.setattr(contend, "blocked_by", blocked_by)


def leave_the_queue_when_refused(patch: pytest.MonkeyPatch) -> None:
    real = LockAttempt._take

    async def take(self: LockAttempt) -> Handle | None:
        handle = await real(self)
        if handle is None:
            await self._withdraw(self.limit)
        return handle

    patch.setattr(LockAttempt, "_take", take)


def always_barge(patch: pytest.MonkeyPatch) -> None:
    real = LockAttempt._way_past_the_queue

    async def way(self: LockAttempt) -> Any:
        self.may_barge = True
        return await real(self)

    patch.setattr(LockAttempt, "_way_past_the_queue", way)


def no_way_without_a_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contend, "_denied_at", lambda error, op_index: False)


def an_unreadable_queue_is_an_empty_one(patch: pytest.MonkeyPatch) -> None:
    real = LockAttempt._read

    def read(self: LockAttempt, results: Iterable[tuple[KVPair, ...]]) -> Look:
        look = real(self, results)
        own = self.contender
        return Look(look.key, look.pair, (own,), look.dead) if own is not None and not look.live else look

    patch.setattr(LockAttempt, "_read", read)


def contend_with_a_session_of_its_own(patch: pytest.MonkeyPatch) -> None:
    need, lock_op, taking = LockAttempt._need_session, LockAttempt._lock_op, LockAttempt._taking
    second: dict[Shared, SessionSource] = {}

    async def need_both(self: LockAttempt) -> None:
        await need(self)
        source = second.setdefault(self.client, self.client.source(self.client.sessions.spec))
        self.session = (await source.live(self.io, deadline=self.limit)).id

    def lock(self: LockAttempt, key: str) -> TxnOp:
        op = lock_op(self, key)
        return op if key != self.key or self.kept is None else replace(op, session=self.kept.id)

    def take(self: LockAttempt, contender: KVPair) -> tuple[TxnOp, ...]:
        check, _, delete = taking(self, contender)
        return check, lock(self, self.key), delete

    patch.setattr(LockAttempt, "_need_session", need_both)
    patch.setattr(LockAttempt, "_lock_op", lock)
    patch.setattr(LockAttempt, "_taking", take)


def always_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contend, "is_head", lambda *_: False)


def who_follows_nobody_is_the_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contend, "is_head", lambda *_: True)


def who_follows_the_holder_is_the_head(patch: pytest.MonkeyPatch) -> None:
    def is_head(look: Look, own: KVPair, before: Gone) -> bool:
        return look.pair is not None and look.pair.session == before.session

    patch.setattr(contend, "is_head", is_head)


missing_is_head: Final = _judging(_missing_is_head)
never_adopt: Final = _judging(_never_adopt)
follow_the_head: Final = _judging(_follow_the_head)
