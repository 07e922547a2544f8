"""A hold as a leadership: the same hold, whose fence is the term, and whose end is always told.

The code that works under a lock also releases it. A leadership may be given up by other code in the same
process, perhaps by an operator's handler, while the leader is at work. So for the leader that is a loss too,
with the reason RESIGNED.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from consul_coord.errors import LeadershipLost, LockLost, NotHeld
from consul_coord.io import Once
from consul_coord.models import LossReason
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.view import HoldView

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from consul_coord.recipes.hold.grant import Grant


@contextmanager
def told_as_leadership(hold: Grant) -> Generator[None]:
    """Let the news inside that a hold was lost, or released, come out as LeadershipLost."""
    try:
        yield
    except LeadershipLost:
        raise
    except LockLost as lost:
        raise leadership_lost(lost) from lost.__cause__
    except NotHeld:
        raise resigned(hold) from None


def leadership_lost(lost: LockLost) -> LeadershipLost:
    """Return the same news, of a leadership."""
    return LeadershipLost(
        *lost.args, key=lost.key, session=lost.session, fence=lost.fence, reason=lost.reason
    )


def resigned(hold: Grant) -> LeadershipLost:
    """Return the error of a leadership that was given up while the leader was at work."""
    message = f"the leadership of {hold.key!r} (term {hold.fence}) was given up here"
    return LeadershipLost(
        message, key=hold.key, session=hold.session, fence=hold.fence, reason=LossReason.RESIGNED
    )


def check(hold: Grant, now: float) -> None:
    """Raise LeadershipLost if a leadership has ended, by a loss or by resigning; no I/O."""
    with told_as_leadership(hold):
        hold_ops.check(hold, now)


def why_over(hold: Grant, now: float) -> LossReason | None:
    """Return why a leadership has ended, or None while it lasts."""
    loss = hold.loss(now)
    return LossReason.RESIGNED if loss is None and hold.ended else loss


class End:
    """The loss at the end of a leadership, however it ends."""

    def __init__(self, hold: Grant) -> None:
        self._hold = hold
        self.over = hold.over

    @property
    def valid_until(self) -> float:
        """The leadership's deadline."""
        return self._hold.valid_until

    def is_lost(self, now: float) -> bool:
        """Return whether the leadership has ended at ``now``."""
        return not self._hold.is_held(now)


class LeadershipView(HoldView):
    """The view of a leadership, without any I/O."""

    @property
    def term(self) -> int:
        """The term: higher than that of every leadership of this key before; the hold's fence."""
        return self.fence

    @property
    def reason(self) -> LossReason | None:
        """Why it has ended, RESIGNED when it was given up; None while it lasts. No I/O."""
        return why_over(self._hold, self._now())

    def check(self) -> None:
        """Raise LeadershipLost if it has ended, by a loss or by resigning; no I/O."""
        check(self._hold, self._now())

    def beat(self, within: float) -> None:
        """Promise the next beat within so many seconds: without it the leadership is lost, as STALLED.

        Raises LeadershipLost, also after a resignation, and InvalidArgument; see ``Hold.beat``. No I/O.
        """
        with told_as_leadership(self._hold):
            super().beat(within)

    def on_lost(self, fn: Callable[[LossReason], object]) -> None:
        """Call ``fn`` with the reason, once, when it has ended; at once when it has.

        On the client's callback thread, or in its event loop. Raises InvalidArgument.
        """
        self._check_lost_callback(fn)
        hold, host = self._hold, self._core.host

        told: Once[LossReason] = Once()

        def tell() -> None:
            reason = why_over(hold, host.now())
            if reason is not None and told.settle(reason):
                host.call_back(partial(fn, reason))

        hold.look(host.now())
        hold.over.subscribe(tell)
