"""The view of a hold without any I/O: the common half of its blocking and its async view.

Rules
- Everything here is computed at each look, from the lease and the clock.
- Whether the lock is held is decided in ``recipes.hold``; this only names it for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from consul_coord.models import _validate
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold import grant

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.errors import LockLost
    from consul_coord.io import Host
    from consul_coord.models import HoldState, LossReason, Sequencer, TxnOp
    from consul_coord.recipes.hold.grant import Grant, Handle
    from consul_coord.recipes.hold.holds import Holds
    from consul_coord.recipes.session.keeping import Sessions


class Client(Protocol):
    """The part of a client that a hold's view needs."""

    host: Host
    holds: Holds
    sessions: Sessions


class HoldView:
    """A hold's facts and its local truth."""

    _core: Client
    _hold: Grant
    _handle: Handle | None
    """Keeps the hold, where whoever has this view answers for it."""
    _check_callbacks: Callable[..., None]
    """Refuses a function that can't be called here, by its parameter."""

    def _now(self) -> float:
        return self._core.host.now()

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
        return self._hold.look(self._now())[0]

    @property
    def reason(self) -> LossReason | None:
        """Why it was lost, or None while it was not; no I/O."""
        return self._hold.loss(self._now())

    @property
    def is_held(self) -> bool:
        """Whether it may be relied on at this moment; no I/O."""
        return self._hold.is_held(self._now())

    def deadline(self) -> float:
        """Return until when it is surely held unless renewed, on the clock of ``client.now()``.

        The earliest of three: the end of the lease, of ``max_hold``, and of the time for the next beat.
        """
        return self._hold.valid_until

    def remaining(self) -> float:
        """Return the seconds until ``deadline()``.

        0 when it has ended, ``inf`` for a session without a bound.
        """
        now = self._now()
        return max(0.0, self._hold.valid_until - now) if self._hold.is_held(now) else 0.0

    def check(self) -> None:
        """Raise LockLost if it was lost, NotHeld if it was released; no I/O."""
        hold_ops.check(self._hold, self._now())

    def beat(self, within: float) -> None:
        """Promise the next beat within so many seconds: without it the hold is lost, as STALLED.

        The first call starts it, each one replaces the promise before, and ``math.inf`` takes it back. So
        work that hangs does not hold for ever. No I/O, and cheap: call it for each piece of work. Raises
        LockLost when it was lost, NotHeld when it was released, InvalidArgument when ``within`` is not above
        0.
        """
        self._core.holds.beat(self._hold, within)

    def guard(self) -> tuple[TxnOp, ...]:
        """Return operations that let a transaction, put after them, succeed only while this hold lasts.

        Also after this hold's own ``put``; not after somebody else's write to the key, until the next
        ``put``.
        """
        return self._hold.guard()

    def on_lost(self, fn: Callable[[LossReason], object]) -> None:
        """Call ``fn`` with the reason, once, when it is lost.

        At once when it is. On the client's callback thread. Raises InvalidArgument.
        """
        self._check_lost_callback(fn)
        self._core.holds.on_lost(self._hold, fn)

    def _check_lost_callback(self, fn: object) -> None:
        if fn is None:  # which stands for no function elsewhere
            _validate.refuse_kind("fn", fn, "a function")
        self._check_callbacks(fn=fn)

    def __reduce__(self) -> tuple[object, ...]:
        name = type(self).__name__
        message = f"{name} can't be pickled: it is this process's; pass on its fence, or its sequencer"
        raise TypeError(message)

    def __repr__(self) -> str:
        left = f"{self.remaining():.1f} s left"
        return f"<{type(self).__name__} of {self.key!r}: {self.state}, fence {self.fence}, {left}>"


def grant_of(view: HoldView) -> Grant:
    """Return what a hold is a view of, for this package's own use: the one door to it."""
    return view._hold  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def handle_of(view: HoldView) -> Handle | None:
    """Return what keeps the hold of a view; None where somebody else does."""
    return view._handle  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def host_of(view: HoldView) -> Host:
    """Return the host of a view's client."""
    return view._core.host  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def error_at_exit(view: HoldView, raised: BaseException | None) -> LockLost | None:
    """Return what leaving a block on a hold raises, after the release, besides what its body raised."""
    now = view._now()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return grant.error_at_exit(grant_of(view), now, raised)
