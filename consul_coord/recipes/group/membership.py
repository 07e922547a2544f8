"""Being a member: joining, staying, leaving.

Rules
- A member is a hold of its own key. So its loss is noticed, told and given back as any hold's is, and two
  members never have one name.
- A member that lost its key joins again by itself, with the value it last gave, until it leaves or the client
  closes. After a refusal the pauses grow.
- All members of a client share one session, which is not the one of its locks. Their keys vanish with it, and
  have no lock-delay, so that a name is free again as soon as its member has gone.
- A member that is refused because the name is taken watches that key: a process that was restarted under the
  same name joins when the session of its former life has ended.
- Leaving ends the calls that join: a member that has left never comes back by an earlier call.
- Joining twice at once is one join: the second call waits for the first. A first one that was interrupted, at
  whatever line, is not waited for.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from consul_coord.errors import AcquireTimeout, ConsulCoordError, NotHeld, PermissionDenied
from consul_coord.events import Failed, Joined
from consul_coord.http.backoff import LONGEST_PAUSE, delay
from consul_coord.http.endpoints import kv
from consul_coord.http.failures import bare
from consul_coord.http.retry import ask
from consul_coord.io import Signal
from consul_coord.models import Blocker, LossReason, ReleaseOutcome, _validate
from consul_coord.models.group import GROUP_FLAGS
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.contend.attempt import deadline_of, let_go
from consul_coord.recipes.contend.changes import Changes
from consul_coord.recipes.contend.limits import check_value
from consul_coord.recipes.contend.recipe import Cancellable
from consul_coord.recipes.contend.refusals import timed_out
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.lock.plan import LockPlan
from consul_coord.recipes.lock.unattended import UnattendedAttempt

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import BlockerKind
    from consul_coord.models.group import Member
    from consul_coord.recipes.contend.shared import Shared
    from consul_coord.recipes.group.members import GroupPlan
    from consul_coord.recipes.hold.grant import Grant, Handle

LOOK = 0.25
"""Seconds between two looks of a call that waits for another one's attempt."""
NOT_JOINED = ReleaseOutcome.ALREADY_LOST
"""The outcome of leaving without being a member."""


class MemberAttempt(UnattendedAttempt):
    """One attempt to join: a lock's, on a key for which nobody queues, with the value that counts by then."""

    def __init__(self, io: IO, membership: Membership, plan: LockPlan, *, timeout: float | None) -> None:
        client = membership.client
        super().__init__(io, client, plan, client.sessions.members, timeout=timeout)
        self._membership = membership

    async def run(self) -> Handle:
        """Join, or raise why not."""
        try:
            return await super().run()
        except PermissionDenied as error:
            if not any(self._membership.key in rule for rule in error.needed):
                raise
            # Not the rule for this key alone: the next process may have another id.
            needed = (f'key:write on the prefix "{self._membership.folder}"',)
            message = f"no permission to join {self._membership.key!r}: the token needs {needed[0]}"
            raise PermissionDenied(
                message,
                needed=needed,
                method=error.method,
                path=error.path,
                status=error.status,
                body=error.body,
            ) from error

    async def _barge(self, *, queues: bool = True) -> Handle | None:
        value = self._membership.value
        if value != self.value:
            self.value = value
            self.keys.remove = (*self.keys.remove, value)
        return await super()._barge(queues=queues)

    @property
    def _without_queue(self) -> bool:
        return True

    def _block(
        self,
        kind: BlockerKind,
        *,
        session: str | None = None,
        position: int | None = None,
        cause: ConsulCoordError | None = None,
    ) -> None:
        super()._block(kind, session=session, position=position, cause=cause)
        if self._membership.hold is not None:
            self._membership.problem = self._timeout()


class Membership(Cancellable):
    """One member, from its first join to its leave."""

    def __init__(
        self,
        client: Shared,
        plan: GroupPlan,
        member: str,
        value: bytes,
        *,
        evictable: bool,
        keeps: object,
    ) -> None:
        self.keeps = keeps
        """The object that must live as long as this runs: a client that nobody refers to closes."""
        self.client = client
        self.id = member
        self.key = plan.key(member)
        self.folder = plan.directory + "/"
        super().__init__(self.key)
        self.value = checked(self.key, value)
        self.final = {LossReason.CLIENT_CLOSED, LossReason.FORKED}
        """After such a loss it does not join again."""
        if evictable:
            self.final |= {LossReason.KEY_DELETED}
        self.stopping = Signal()
        self.problem: Exception | None = None
        """Why it can't join again: what the last attempt was refused for, or the present one waits for."""
        self._handle: Handle | None = None
        self._mutex = client.host.mutex()
        self._changes = Changes()
        """Told whenever an attempt has ended."""
        self._tried: weakref.ref[Signal] | None = None
        """The error that the call of an attempt raises at its end, while that call lives."""
        self._staying = False

    @property
    def hold(self) -> Grant | None:
        """The latest membership."""
        return None if self._handle is None else self._handle.grant

    def is_joined(self, now: float) -> bool:
        """Return whether it may be relied on at ``now``."""
        return self.hold is not None and self.hold.is_held(now)

    @property
    def is_over(self) -> bool:
        """Whether it was left, here or with its client."""
        return self.stopping.is_set() or self.client.closing.is_set()

    # -- joining

    def _attempt(self, io: IO, *, timeout: float | None) -> MemberAttempt:
        """Return one attempt to join, not begun yet."""
        plan = _plan(self.key, self.value, joined=self.hold is not None)
        return MemberAttempt(io, self, plan, timeout=timeout)

    async def join(self, io: IO, *, timeout: float | None) -> None:
        """Become a member, or wait until it is one again."""
        started, deadline = io.now(), deadline_of(io, timeout)  # in this order: it has waited for its timeout
        while not self.is_joined(io.now()):
            with self._changes.watching() as changed:
                left = None if timeout is None else max(0.0, deadline - io.now())
                if await self._try(io, timeout=left, again=False, since=started) or self.is_joined(io.now()):
                    continue
                await io.wait(changed, deadline=min(deadline, io.now() + LOOK))
            if io.now() >= deadline:
                raise self._timed_out(waited=io.now() - started)
        if self.stopping.is_set():
            # Left just then, perhaps by a call that has seen no hold.
            if self.hold is not None:
                await let_go(io, self.client.holds, self.hold, until=io.now())
            raise self.cancelled()

    def _timed_out(self, *, waited: float) -> AcquireTimeout:
        """Return the error of a call that waited in vain for another one's attempt."""
        problem = self.problem
        if isinstance(problem, AcquireTimeout):
            cause = problem.__cause__ if isinstance(problem.__cause__, ConsulCoordError) else None
            return timed_out(self.key, "", problem.blocker, cause, waited=waited)
        return timed_out(self.key, "", Blocker("queued"), None, waited=waited)

    async def _try(self, io: IO, *, timeout: float | None, again: bool, since: float | None = None) -> bool:
        """Make an attempt, unless another call does or has just; returns whether that made this a member.

        ``since``: when the call began, which may have waited for another one's attempt.
        """
        mine, handle, kept = Signal(), None, False
        with self._mutex:
            if self._is_tried() or self.is_joined(io.now()):
                return False
            self._tried = weakref.ref(mine)
        try:
            attempt = self._attempt(io, timeout=timeout)
            attempt.began = attempt.began if since is None else since
            handle = await attempt.run()
            self._handle, self.problem = handle, None
            hold = handle.grant
            if not self._staying:
                io.spawn(self._stay, name=f"stay a member: {self.key}")
            kept = True
        finally:
            if handle is not None and not kept:
                self._handle = None  # interrupted: nobody refers to it any more, so it is given back
            mine.set()
            self._changes.tell()
        io.emit(Joined(self.key, hold.session, hold.fence, again))
        return True

    def _is_tried(self) -> bool:
        """Return whether some call makes an attempt; one that was interrupted is gone with its signal."""
        tried = None if self._tried is None else self._tried()
        return tried is not None and not tried.is_set()

    # -- staying

    async def _stay(self, io: IO) -> None:
        """Join again whenever the membership is lost, until it is left."""
        if self._staying:
            return  # started twice before it ran
        self._staying = True
        failures, has_latest = 0, self.hold
        try:
            while (hold := self.hold) is not None and not self.is_over:
                if not hold.ended and (hold is has_latest or await self._has_latest(io, hold)):
                    failures, has_latest = 0, hold
                    await io.wait(hold.over, deadline=hold.lease.valid_until)
                    hold.look(io.now())
                elif hold.released or hold.reason in self.final:
                    return
                elif not (hold.ended and await self._join_again(io)):
                    failures += 1
                    await io.wait(self.stopping, deadline=io.now() + self._pause(io, failures))
            if self.stopping.is_set() and hold is not None and not hold.ended:
                await release(io, self.client.holds, hold)  # its leave has seen the membership before it
        finally:
            self._staying = False
            self._changes.tell()

    async def _join_again(self, io: IO) -> bool:
        """Make an attempt in a task of its own, which ends when this is left, or the client closes."""

        async def attempt(io: IO) -> None:
            try:
                await self._try(io, timeout=None, again=True)
            except ConsulCoordError as error:
                self._refused(error)

        task = io.spawn(attempt, name=f"join again: {self.key}")
        unsubscribes = [over.subscribe(task.cancel) for over in (self.stopping, self.client.closing)]
        await io.wait(task.done)
        for unsubscribe in unsubscribes:
            unsubscribe()
        return self.is_joined(io.now())

    async def end(self, io: IO, *, timeout: float) -> None:
        """Have no more attempts made; waits up to ``timeout`` seconds for the one under way.

        Calls that join end with AcquireCancelled.
        """
        self.stopping.set()
        self.cancel(self.client)
        if self.hold is not None and self.hold.ended:
            async with io.shield(timeout) as deadline:
                while self._staying and io.now() < deadline:
                    with self._changes.watching() as changed:
                        if self._staying:
                            await io.wait(changed, deadline=deadline)

    def _pause(self, io: IO, failures: int) -> float:
        return delay(max(1, failures), io.random(), most=LONGEST_PAUSE)

    def _refused(self, error: ConsulCoordError) -> None:
        before, self.problem = self.problem, bare(error)
        if str(error) != str(before) and not self.is_over:
            text = f"{type(error).__name__}: {error}"
            self.client.host.emit(Failed(f"joining again as {self.key!r}", text))

    async def _has_latest(self, io: IO, hold: Grant) -> bool:
        """Return whether a membership has the value, or has ended.

        The value may have been given while the attempt was under way with the one before. It is written then.
        """
        if hold.value != self.value:
            try:
                await hold_ops.put(io, self.client.sessions, hold, self.value)
                self.problem = None
            except ConsulCoordError as error:
                self._refused(error)
        return hold.ended or hold.value == self.value


def _plan(key: str, value: bytes, *, joined: bool = False) -> LockPlan:
    """Return the lock that a member is; ``joined`` says whether this one has had it before."""
    return LockPlan(
        keys=(key,),
        value=value,
        flags=GROUP_FLAGS,
        # A release by hand resets the flags: what was ours is taken again.
        accept_flags=frozenset({0}) if joined else frozenset(),
        remove=True,
    )


def checked(key: str, value: bytes) -> bytes:
    """Return a value that a member can have. Raises ValueTooLarge."""
    return check_value((key,), value, _plan(key, value).carriers())


# -- what users ask for


async def join(io: IO, membership: Membership, *, timeout: float | None) -> None:
    """Become a member; harmless when it is one.

    Raises AcquireTimeout when somebody else has the name, AcquireCancelled when this leaves meanwhile, and
    what the server refuses.
    """
    await membership.join(io, timeout=timeout)


async def leave(io: IO, membership: Membership, *, timeout: float) -> ReleaseOutcome:
    """Be no member any more; waits up to ``timeout`` seconds for that."""
    ends = io.now() + _validate.span("timeout", timeout)
    await membership.end(io, timeout=timeout)
    if (hold := membership.hold) is None:
        return NOT_JOINED
    return await release(io, membership.client.holds, hold, budget=max(0.0, ends - io.now()))


async def update(io: IO, membership: Membership | None, key: str, value: bytes) -> None:
    """Change what the member tells about itself, to what was ``checked``; it stays a member meanwhile.

    Raises NotHeld when it was not joined, and LockLost when it is just not one: the value counts from its
    next join.
    """
    if membership is None or membership.stopping.is_set() or (hold := membership.hold) is None:
        message = f"{key!r} is not a member: join first"
        raise NotHeld(message, key=key)
    membership.value = value
    await hold_ops.put(io, membership.client.sessions, hold, value)
    membership.problem = None


async def members(io: IO, client: Shared, plan: GroupPlan) -> tuple[Member, ...]:
    """Return who is there, as the leader has it."""
    call = kv.list_pairs(plan.directory + "/", options=CONSISTENT)
    return plan.read((await ask(io, call, timeout=client.timeout)).value)
