"""Every error of the library has its exit code."""

from __future__ import annotations

import pytest

from consul_coord import Blocker, ConsulCoordError, LossReason, errors
from consul_coord.cli.codes import code_of


def timeout(kind: str) -> ConsulCoordError:
    return errors.AcquireTimeout("late", key="k", blocker=Blocker(kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (timeout("held"), 75),
        (timeout("queued"), 75),
        (timeout("lock_delay"), 75),
        (timeout("unreachable"), 69),
        (errors.KeyConflict("", key="k", flags=1), 65),
        (errors.SemaphoreLimitConflict("", key="p", local=1, remote=2), 65),
        (errors.LockLost("", key="k", fence=1, reason=LossReason.EXPIRED), 76),
        (errors.PermissionDenied(""), 77),
        (errors.ConfigError(""), 78),
        (errors.InvalidKey("", key="/k"), 2),
        (errors.ValueTooLarge("", size=2, limit=1), 2),
        (errors.UnsafeSession(""), 2),
        (errors.ConnectFailed("", method="GET", path="/v1/x", outcome_unknown=False), 69),
        (errors.RequestTimeout("", method="GET", path="/v1/x", outcome_unknown=True), 69),
        (errors.BrokenReply("", method="GET", path="/v1/x", outcome_unknown=True), 69),
        (errors.DecodeError(""), 69),
        (errors.NoLeader("", method="GET", path="/v1/x", status=500), 69),
        (errors.RateLimited("", method="GET", path="/v1/x", status=429), 69),
        (errors.ServerError("", method="GET", path="/v1/x", status=500), 69),
        (errors.InvalidRequest("", method="GET", path="/v1/x", status=400), 78),
        (errors.SessionNotFound("", session="s"), 78),
        (errors.SessionCheckFailed(""), 78),
        (errors.BackgroundFailed(""), 78),
        (errors.ClientClosed(""), 70),
        (errors.NotHeld("", key="k"), 70),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_code_of_each_error(error: ConsulCoordError, code: int) -> None:
    assert code_of(error) == code
