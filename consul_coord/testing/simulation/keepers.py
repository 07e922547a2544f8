"""Users that keep a session of their own, hand it over, and resume it where it is or elsewhere.

Rules
- A session that was exported has no user until one resumes it. A user may take one over from another process,
  which has stopped using it by then.
- A resumed session holds what it held, under the same fence, unless somebody has changed the key meanwhile.
- Where it can't be resumed, whoever has it keeps it, with its hold.
- To close a session that holds nothing takes no longer than a release. It is gone then, or soon.
- A session that no user resumes expires, and its keys become free as they do after a crash.
- Some sessions are another program's, with a lock-delay of its own: their users give an id, and leave the
  rest to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from consul_coord.errors import (
    ConsulCoordError,
    PermissionDenied,
    SessionCheckFailed,
    SessionNotFound,
    UnsafeSession,
)
from consul_coord.http.failures import retryable
from consul_coord.models import LossReason
from consul_coord.models.session import COORDINATION_NODE, DEFAULT_LOCK_DELAY
from consul_coord.recipes.client import close_session
from consul_coord.recipes.lock.lock import LockObject
from consul_coord.recipes.session import handling
from consul_coord.testing.simulation.dice import Dice
from consul_coord.testing.simulation.promises import RELEASED_WITHIN
from consul_coord.testing.simulation.trace import short
from consul_coord.testing.simulation.workload import LockUser

if TYPE_CHECKING:
    import weakref
    from collections.abc import Sequence

    from consul_coord.recipes.contend.recipe import Recipe
    from consul_coord.recipes.hold.grant import Grant, Handle
    from consul_coord.recipes.session.keeping import KeptSession
    from consul_coord.testing.simulation.claims import Claim
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.program import SimTask

HANDS_OVER = 0.4
"""Of so many holds the session is handed over, not released."""
BESIDE = 0.001
"""Seconds after the beginning of a release within which that task begins."""
CLOSES_BESIDE = 0.5
"""So often another task closes the session while a hold is released."""
MOVES = 0.3
"""So often whoever resumes a session has all others on a coordination node: this one stays where it is."""
TAKES_OVER = 0.7
"""So often a user takes over a session that waits for one."""


BORROWS = 0.3
"""So often the session of a round is another program's."""
DELAYS = 0.3, 0.6, 1.0
"""The lock-delay of such a session, in those of the others."""
LEAST_DELAY = 1.0
"""Seconds: of a shorter one each client warns."""


@dataclass(frozen=True, slots=True)
class Export:
    """A session that was handed over, with a hold."""

    text: str
    of: str
    """The lock."""
    claim: Claim
    """The hold that it had."""


class KeepingUser(LockUser):
    """A user of locks with sessions of its own."""

    writes_late = False  # a hold that is handed over is written, too
    says_once = False  # it looks in between whether its session has the key
    exports: list[Export]
    """Those that wait for a user, of all processes."""
    _kept: KeptSession | None = None
    _resumed: Export | None = None
    _lock: LockObject | None = None
    """The lock of the present round."""
    _borrowed = ""
    """The session of another program that it uses in this round."""

    @cached_property
    def _keeps(self) -> Dice:
        return Dice(self.process.seed, f"{self.process.name} {self.actor} keeps sessions")

    @cached_property
    def _outside(self) -> Dice:
        return Dice(self.process.seed, f"{self.process.name} {self.actor} borrows sessions")

    def choices(self) -> Sequence[str]:
        """Return the locks, or the one that a resumed session holds."""
        return super().choices() if self._resumed is None else [self._resumed.of]

    def object_for(self, of: str, *, alone: bool) -> LockObject:
        """Return a lock, by the session that is kept."""
        shared = super().object_for(of, alone=alone)
        session = self._borrowed if self._kept is None else self._kept.id
        if not session:
            return shared
        own = LockObject(replace(shared.plan, session=session))
        self._lock = None if alone else own  # which keeps its hold
        return own

    async def _round(self, io: SimIO) -> weakref.ref[Handle] | None:
        export = self.exports.pop() if self.exports and self._keeps.chance(TAKES_OVER) else None
        if export is None and self._outside.chance(BORROWS):
            return await self._round_with_anothers(io)
        if not await self._open(io, export):
            return None
        try:
            return await super()._round(io)
        finally:
            kept, self._kept, self._resumed = self._kept, None, None
            if kept is not None:
                self._try_export(kept)
                await self._close(io, kept)

    async def _round_with_anothers(self, io: SimIO) -> weakref.ref[Handle] | None:
        """Use a session of another program, which ends it then."""
        cluster, ttl = self.judge.cluster, self.process.core.sessions.spec.ttl
        longest = self.process.core.sessions.spec.lock_delay
        delay = self._outside.choice(DELAYS) * (DEFAULT_LOCK_DELAY if longest is None else longest)
        if ttl is None or delay < LEAST_DELAY or not (cluster.state.leader and cluster.has_node):
            return None
        self._borrowed = cluster.open_session(ttl=ttl, lock_delay=delay)
        self.judge.note(
            self.process.name, f"borrows {short(self._borrowed)}, with a lock-delay of {delay:g} s"
        )
        dropped = None
        try:
            dropped = await super()._round(io)
        finally:
            if dropped is None:  # or the session expires once the hold is found
                cluster.destroy_session(self._borrowed)
            self._borrowed = ""
        return dropped

    def _try_export(self, kept: KeptSession) -> None:
        """Hand over a session that has ended, as its client knows, which is refused."""
        if kept.lease.ended_by is None or kept.exported:
            return
        try:
            handling.export(kept)
        except SessionNotFound:
            self.judge.see("no session to hand over")
        else:
            text = f"{self.process.name} hands over {kept.id}, which has ended: {kept.lease.ended_by}"
            self.judge.convict("answers", text)

    async def _open(self, io: SimIO, export: Export | None) -> bool:
        """Open a session, or resume one; returns whether that could be done."""
        core, text = self.process.core, None if export is None else export.text
        spec = core.sessions.spec
        if export is not None and spec.lock_delay and not spec.node_checks and self._outside.chance(MOVES):
            spec = replace(spec, node=COORDINATION_NODE, register_node=True)
        call, left = self.judge.promises.called(self.process, "opens a session", core.timeout), export
        if export is not None:
            self.judge.sessions.handed_over.discard(export.claim.session)
            self.judge.news.resumes(self.process, export.claim)
        try:
            self._kept = await self.process.call(
                io.task, lambda io: handling.open_session(io, core.sessions, spec, resume=text)
            )
            left = None
        except SessionNotFound:
            self.judge.see("session resumed in vain")
            return False
        except ConsulCoordError as error:
            if not (retryable(error) or isinstance(error, PermissionDenied | SessionCheckFailed)):
                raise
            self.exports.extend(() if export is None else (export,))
            return False
        finally:
            self.judge.promises.ended(call)
            if left is not None:
                self.judge.sessions.handed_over.add(left.claim.session)
        self.judge.note(self.process.name, f"keeps {short(self._kept.id)}")
        self._resumed = export
        return True

    async def _acquire(
        self, io: SimIO, of: str, what: Recipe[Any], *, timeout: float | None
    ) -> Handle | None:
        try:
            return await super()._acquire(io, of, what, timeout=timeout)
        except SessionNotFound as error:
            # One whose lease is over here is destroyed as soon as that can be done.
            expired = self._kept is not None and self._kept.lease.ended_by is LossReason.EXPIRED
            if self.judge.cluster.lives(error.session) and not expired:
                self.judge.convict("answers", f"{error}, and the session lives")
            self.judge.see("refused: SessionNotFound")
        except UnsafeSession:
            # One that has ended here is any other program's: it has to be safe without being asked for.
            if self._kept is None or self._kept.lease.ended_by is None:
                raise
        return None

    async def _close(self, io: SimIO, kept: KeptSession) -> None:
        """Close a session; an exported one goes on without its client."""
        # What it still holds is released first.
        held = [*self.process.core.holds.all(), *self.process.core.holds.releasing()]
        moves = 1 + any(hold.kept is kept for hold in held)
        # To hand it over waits for a clean-up that is under way.
        call = self.judge.promises.called(
            self.process, "closes its session", moves * RELEASED_WITHIN, gives_back=not kept.exported
        )
        call.last = RELEASED_WITHIN * self.judge.stretch if moves > 1 else 0.0
        if not kept.exported:
            self.judge.sessions.closes(self.process, kept.id)
        try:
            await self.process.call(
                io.task, lambda io: close_session(io, self.process.core, kept), closing=True
            )
        finally:
            self.judge.promises.ended(call)
            if not kept.exported:
                self.judge.sessions.closes(self.process, kept.id)

    async def _close_beside(self, kept: KeptSession, io: SimIO) -> None:
        """Close a session while another task releases its hold."""
        await io.sleep(self._keeps.uniform(0.0, BESIDE))
        await self._close(io, kept)

    async def give_back(self, io: SimIO, hold: Grant, claim: Claim) -> None:
        """Release a hold, or hand it over with its session."""
        kept = self._kept
        if kept is None or hold.ended or self.healed() or not self._keeps.chance(HANDS_OVER):
            other: SimTask | None = None
            if kept is not None and self._keeps.chance(CLOSES_BESIDE):
                other = self.process.spawn(partial(self._close_beside, kept), name="closes a session")
            await super().give_back(io, hold, claim)
            if other is not None:
                await io.wait(other.done)
            return
        for one in claim.whole:
            one.left = one.exported = True
            self.judge.tell(one, "released")
        if claim.limits:
            # Its client does not know that it has left, and takes it for stuck if its time comes meanwhile.
            lasts = max(claim.limits.values()) - io.now() + claim.lock_delay
            self.judge.belongings.dropped(self.process, [one.of for one in claim.whole], lasts=lasts)
        self.judge.sessions.handed_over.add(kept.id)
        export = Export(handling.export(kept), " and ".join(one.of for one in claim.whole), claim)
        if self._keeps.chance(0.5):
            await self._close(io, kept)
            self.exports.append(export)
        elif self._lock is not None and await self._resumes_here(io, hold, export):
            handle = await self._acquire(io, export.of, self._lock, timeout=5.0)
            if handle is not None:
                again = handle.grant
                await super().give_back(io, again, self._claim(again, export.of))

    async def _resumes_here(self, io: SimIO, hold: Grant, export: Export) -> bool:
        """Resume a session where it was handed over; if that can't be done, its hold goes on."""
        if await self._open(io, export):
            return True
        if hold.reason is LossReason.CLIENT_CLOSED and not self.process.core.closing.is_set():
            text = f"{self.process.name} can't resume {short(hold.session)}, and has let go of {hold.key}"
            self.judge.convict("answers", text)
        return False

    def _claim(self, hold: Grant, of: str) -> Claim:
        claim = super()._claim(hold, of)
        if self._resumed is not None:
            for one, before in zip(claim.whole, self._resumed.claim.whole, strict=False):
                self.judge.resumed(one, of=before)
        return claim
