"""Exit codes, in one table. Their numbers follow sysexits.h, so that they rarely meet those of commands.

A command that was run gives its own code, or 128 + n when signal n ended it.
"""

from __future__ import annotations

from enum import IntEnum

from consul_coord import errors


class ExitCode(IntEnum):
    """The exit codes of the command line itself."""

    DONE = 0
    NO = 1
    """The answer is no."""
    USAGE = 2
    KEY_CONFLICT = 65
    """The key is used for something else."""
    UNREACHABLE = 69
    """Consul can't be reached, or can't serve."""
    BUG = 70
    """Ours."""
    NOT_ACQUIRED = 75
    """Not acquired in time."""
    LOST = 76
    """The hold was lost while the command ran; the command was stopped."""
    DENIED = 77
    """The token lacks a permission."""
    CONFIG = 78
    """A setting, an installation or the server's own setup is wrong."""
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127


SIGNALLED = 128
"""Added to the number of the signal that ended a command, or the wait for its lock."""

MEANINGS: tuple[tuple[str, str], ...] = (
    ("the command's own", "the command ran and ended"),
    (
        "128 + n",
        "signal n ended the command, or consul-coord: 130 Ctrl-C, 141 nobody reads the answer, 143 TERM",
    ),
    ("126, 127", "the command is not executable, or was not found"),
    ("0", "done"),
    ("1", "the answer is no: nothing was found or changed, or doctor found a fault"),
    ("2", "wrong usage"),
    ("65", "the key is used for something else, or with another limit"),
    ("69", "Consul can't be reached, or can't serve"),
    ("70", "a bug in consul-coord"),
    ("75", "not acquired in time (--not-acquired-code changes it)"),
    ("76", "the hold was lost while the command ran, and the command was stopped"),
    ("77", "the token lacks a permission"),
    ("78", "bad configuration, here or of the servers"),
)
"""Every code in words, for people."""

_BY_ERROR: tuple[tuple[type[Exception], ExitCode], ...] = (
    # The first that matches counts: special before general.
    (errors.AcquireTimeout, ExitCode.NOT_ACQUIRED),
    (errors.KeyConflict, ExitCode.KEY_CONFLICT),
    (errors.SemaphoreLimitConflict, ExitCode.KEY_CONFLICT),
    (errors.LockLost, ExitCode.LOST),
    (errors.PermissionDenied, ExitCode.DENIED),
    (errors.ConfigError, ExitCode.CONFIG),
    (errors.BackgroundFailed, ExitCode.CONFIG),
    (errors.InvalidArgument, ExitCode.USAGE),
    (errors.UnsafeSession, ExitCode.USAGE),
    (errors.TransportError, ExitCode.UNREACHABLE),
    (errors.DecodeError, ExitCode.UNREACHABLE),
    (errors.NoLeader, ExitCode.UNREACHABLE),
    (errors.RateLimited, ExitCode.UNREACHABLE),
    (errors.ServerError, ExitCode.UNREACHABLE),
    (errors.ResponseError, ExitCode.CONFIG),
    (errors.SessionCheckFailed, ExitCode.CONFIG),
)


def code_of(error: errors.ConsulCoordError) -> ExitCode:
    """Return the exit code that an error of the library stands for."""
    if isinstance(error, errors.AcquireTimeout) and error.blocker.kind == "unreachable":
        return ExitCode.UNREACHABLE
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.BUG)
