"""A hold, as blocking code sees it.

Rules
- What a hold knows by itself (state, fence, deadline) is computed at each look, without I/O; only the methods that say so ask
  the server.
- It is a view: whether the lock is held is decided in ``recipes.hold``, for this and the async twin alike.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consul_coord.models import HoldState
from consul_coord.recipes import hold_ops
from consul_coord.recipes.release import release
from consul_coord.sync.driver import wait_for_any

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.models import LossReason, ReleaseOutcome, Sequencer, TxnOp
    from consul_coord.recipes.coordinator import Coordinator
    from consul_coord.recipes.hold import HoldCore
    from consul_coord.sync.client import Client


class LossEvent:
    """Tells of the loss of one hold; never set by its release."""

    def __init__(self, client: Client, hold: HoldCore) -> None:
        self._client = client
        self._hold = hold

    def is_set(self) -> bool:
        """Return whether the hold is lost; no I/O."""
        return self._hold.look(self._client.now())[0] is HoldState.LOST

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the hold is lost, at most ``timeout`` seconds.

        Returns whether it is lost; False also as soon as it was released.
        """
        now = self._client.now()
        deadline = math.inf if timeout is None else now + timeout
        while not self.is_set() and not self._hold.ended and self._client.now() < deadline:
            until = min(deadline, self._hold.lease.valid_until)
            wait_for_any([self._hold.over], until, self._client.clock)
        return self.is_set()

    def __repr__(self) -> str:
        return f"<LossEvent of {self._hold.key!r}: {'set' if self.is_set() else 'not set'}>"


class Hold:
    """One grant of a lock. It guarantees, and does not guarantee:

    - Until ``deadline()`` nobody else is granted the lock, as long as clocks run at rates that differ by less than the session's
      drift (5 %), and nobody deletes or releases the key by force.
    - A loss is known here by ``deadline()`` at the latest, without any contact to the server.
    - It can't stop a process that was paused between a check and an act. What the lock protects should refuse an older ``fence``
      than it has seen, or take part in a transaction with ``guard()``.
    """

    def __init__(self, client: Client, core: Coordinator, hold: HoldCore) -> None:
        self._client = client
        self._core = core
        self._hold = hold
        self._lost = LossEvent(client, hold)

    @property
    def core(self) -> HoldCore:
        """What this is a view of, for this package's own use."""
        return self._hold

    @property
    def key(self) -> str:
        """The locked key."""
        return self._hold.key

    @property
    def session(self) -> str:
        """The id of the session that holds it."""
        return self._hold.session

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of every earlier hold of this key, fixed at the grant."""
        return self._hold.fence

    @property
    def sequencer(self) -> Sequencer:
        """Key, LockIndex and session, for a server that checks them; changes with ``put``."""
        return self._hold.sequencer

    @property
    def state(self) -> HoldState:
        """HELD, JEOPARDY (held, but renewals fail), LOST or RELEASED, at this moment; no I/O."""
        return self._hold.look(self._client.now())[0]

    @property
    def reason(self) -> LossReason | None:
        """Why it was lost, or None while it was not; no I/O."""
        return self._hold.loss(self._client.now())

    @property
    def is_held(self) -> bool:
        """Whether it may be relied on at this moment; no I/O."""
        return self._hold.is_held(self._client.now())

    @property
    def lost(self) -> LossEvent:
        """The event to wait on for a loss."""
        return self._lost

    def deadline(self) -> float:
        """Return until when it is surely held unless renewed, on the clock of ``client.now()``."""
        return self._hold.lease.valid_until

    def remaining(self) -> float:
        """Return the seconds until ``deadline()``; 0 when it has ended, ``inf`` for a session without a bound."""
        now = self._client.now()
        return self._hold.lease.remaining(now) if self._hold.is_held(now) else 0.0

    def check(self) -> None:
        """Raise LockLost if it was lost; no I/O."""
        hold_ops.check(self._hold, self._client.now())

    def ensure(self, seconds: float) -> None:
        """Make sure that at least ``seconds`` of the lease are left, renewing it if need be.

        Raises LockLost, InvalidArgument when the lease is never that long, and what the renewal raises.
        """
        self._client.call(lambda io: hold_ops.ensure(io, self._core, self._hold, seconds=seconds))

    def verify(self) -> bool:
        """Return whether the leader, asked now, has the key locked for this hold. Raises what the read raises."""
        return self._client.call(lambda io: hold_ops.verify(io, self._core, self._hold))

    def guard(self) -> tuple[TxnOp, ...]:
        """Return operations to put in front of a transaction, which then succeeds only while this very hold lasts.

        Also after this hold's own ``put``; not after somebody else's write to the key, until the next ``put``.
        """
        return self._hold.guard()

    def put(self, value: bytes | str) -> None:
        """Write the key's value while holding it; the fence stays.

        Raises LockLost when it is not held any more, and what the write raises.
        """
        data = value.encode() if isinstance(value, str) else value
        self._client.call(lambda io: hold_ops.put(io, self._core, self._hold, data))

    def on_lost(self, fn: Callable[[LossReason], object]) -> None:
        """Call ``fn`` with the reason, once, when it is lost; at once when it is. On the client's callback thread."""
        self._core.on_lost(self._hold, fn)

    def release(self) -> ReleaseOutcome:
        """Give it up. Idempotent: gives the first outcome again.

        Returns RELEASED, ALREADY_LOST, or UNKNOWN when no answer came within 5 s: it is then given up in the background. Raises
        nothing of the server's or the network's.
        """
        return self._client.call(lambda io: release(io, self._core, self._hold), closing=True)

    def __repr__(self) -> str:
        return f"<Hold of {self.key!r}: {self.state}, fence {self.fence}, {self.remaining():.1f} s left>"
