"""Carrying out an attempt to get something, whatever it is, and telling of what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from consul_coord.errors import AcquireTimeout
from consul_coord.events import Acquired, TimedOut

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from consul_coord.io import IO
    from consul_coord.recipes.hold.grant import Grant


class AttemptLike(Protocol):
    """One call of ``acquire``, not begun yet."""

    async def run(self) -> Grant:
        """Get what is wanted, or raise why not, leaving nothing behind."""
        ...


async def carry_out(io: IO, attempt: AttemptLike) -> Grant:
    """Run an attempt. Raises what it raises."""
    started = io.now()
    try:
        hold = await attempt.run()
    except AcquireTimeout as error:
        io.emit(TimedOut(error.key, error.blocker, io.now() - started))
        raise
    io.emit(Acquired(hold.key, hold.session, hold.fence, io.now() - started))
    return hold


async def or_none(single_try: Awaitable[Grant]) -> Grant | None:
    """Return what a single try gets; None when something else has it, or stands in the way.

    Raises what stands in the way of asking.
    """
    try:
        return await single_try
    except AcquireTimeout as error:
        if error.blocker.kind == "unreachable" and error.__cause__ is not None:
            raise error.__cause__ from None
        return None
