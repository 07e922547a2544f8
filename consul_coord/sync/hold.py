# Made from consul_coord/aio/hold.py by `python tools/make_sync.py`: change that one.
"""A hold, as blocking code sees it.

Rules
- State, fence and deadline are computed on each call, without I/O. Only methods that say so ask the server.
- It is a view: whether the lock is held is decided in ``recipes.hold``, for this and the async twin alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.base_client import WrongWith
from consul_coord.models._validate import as_bytes
from consul_coord.recipes.hold import asking as hold_ops
from consul_coord.recipes.hold.holds import release
from consul_coord.recipes.hold.view import Client, HoldView
from consul_coord.sync.callbacks import check_callbacks

if TYPE_CHECKING:
    from consul_coord.models import ReleaseOutcome
    from consul_coord.recipes.hold.grant import Grant, Handle
    from consul_coord.recipes.session.lease import Losable
    from consul_coord.sync.runner import Runner


class LossEvent:
    """An event that the loss of one hold or session sets, and its release never does."""

    def __init__(self, runner: Runner, subject: Losable) -> None:
        self._runner = runner
        self._subject = subject

    def is_set(self) -> bool:
        """Return whether it is lost; no I/O."""
        return self._subject.is_lost(self._runner.now())

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is lost, at most ``timeout`` seconds; None waits for ever.

        Returns whether it is lost; False also as soon as it was released.
        """
        return self._runner.finish(hold_ops.wait_for_loss, self._subject, timeout=timeout)

    def __repr__(self) -> str:
        return f"<LossEvent: {'set' if self.is_set() else 'not set'}>"


class Hold(HoldView):
    """One grant of a lock.

    - Until ``deadline()`` Consul grants the lock to no other client, if the rates of their clocks differ by
      less than the session's drift (5 %), and no operator deletes or force-releases the key.
    - The holder knows of a loss by ``deadline()`` at the latest, even without contact to Consul.
    - It can't stop a process that pauses between a check and an act. Let the protected resource refuse a
      lower ``fence`` than it has seen, or write with ``guard()``.
    """

    _check_callbacks = staticmethod(check_callbacks)
    if not TYPE_CHECKING:
        __enter__ = __exit__ = WrongWith(
            "is what acquire() returns, and no block: write 'with lock.hold(timeout=...) as hold'"
        )

    def __init__(self, runner: Runner, core: Client, hold: Grant, handle: Handle | None = None) -> None:
        self._runner, self._core = runner, core
        self._hold, self._handle = hold, handle

    @property
    def lost(self) -> LossEvent:
        """The event to wait on for a loss."""
        return LossEvent(self._runner, self._hold)

    def ensure(self, seconds: float) -> None:
        """Make sure that at least ``seconds`` of the lease are left, and renew it if necessary.

        It retries through passing trouble, for the client's ``timeout`` at most.

        Raises LockLost, NotHeld after a release, InvalidArgument if the lease is never that long, and the
        errors of the renewal.
        """
        self._runner.call(hold_ops.ensure, self._core.sessions, self._hold, seconds=seconds)

    def verify(self) -> bool:
        """Ask the servers' leader whether the key is locked for this hold, and return the answer.

        Returns False after a release. Raises the errors of the read.
        """
        return self._runner.call(hold_ops.verify, self._core.sessions, self._hold)

    def put(self, value: bytes | str) -> None:
        """Write the key's value while holding it; the fence stays.

        Raises LockLost if the hold is lost, NotHeld after a release, ValueTooLarge, and the errors of the
        write.
        """
        data = as_bytes(value)
        self._runner.call(hold_ops.put, self._core.sessions, self._hold, data)

    def release(self) -> ReleaseOutcome:
        """Release it. A second call returns the first outcome.

        Returns RELEASED, ALREADY_LOST, or UNKNOWN if no answer came within 8 s. The client then goes on in
        the background. It raises no error of the server or the network.
        """
        return self._runner.finish(release, self._core.holds, self._hold)
