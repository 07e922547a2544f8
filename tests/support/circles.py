"""Errors that only the garbage collector can remove, because they refer to themselves."""

from __future__ import annotations

import gc
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consul_coord.errors import ConsulCoordError

if TYPE_CHECKING:
    from collections.abc import Generator

OURS = (ConsulCoordError, OSError)


@contextmanager
def no_error_in_a_circle() -> Generator[None]:
    """Fail if the block leaves an error, with its frames, that only the collector can remove.

    Cancellations do not count, because event loops themselves keep some.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = [_told(one) for one in gc.garbage if isinstance(one, OURS) and one.__traceback__ is not None]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()
    assert not found, "\n".join(found)


def _told(error: BaseException) -> str:
    return f"{error!r}\n{''.join(traceback.format_tb(error.__traceback__))}"
