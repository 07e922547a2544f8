"""The variables of a command under a hold, and the value that others see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.base_client import own_name
from consul_coord.models._validate import bytes_or_none

if TYPE_CHECKING:
    from consul_coord import Hold


def environ_of(hold: Hold) -> dict[str, str]:
    """Return the variables that a command gets besides ours."""
    slot = getattr(hold, "slot", None)  # of a job that runs once
    return {
        "CONSUL_LOCK_HELD": "true",
        "CONSUL_LOCK_FENCE": str(hold.fence),
        "CONSUL_LOCK_KEY": hold.key,
        "CONSUL_LOCK_SESSION": hold.session,
    } | ({} if slot is None else {"CONSUL_ONCE_SLOT": slot})


def shown_value(value: str | None) -> bytes:
    """Return what a key shows: what was asked for or, for None, host and process. Raises InvalidArgument."""
    return own_name(bytes_or_none(value))
