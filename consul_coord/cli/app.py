"""The verbs put together, and what an error of theirs becomes: one line on stderr and an exit code.

A verb's module is imported when that verb runs, because start-up time is most of what a short command costs.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import click

from consul_coord import __version__
from consul_coord.cli.codes import MEANINGS, SIGNALLED, ExitCode
from consul_coord.cli.extras import report
from consul_coord.extras import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""A full disk, say, under the file that stdout goes to, or a terminal that has been closed."""
_USED_UP = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""The system gives no process or file descriptor more."""
_WIDTH = max(len(code) for code, _ in MEANINGS)
EPILOG = "\n".join(("\b", "Exit codes:", *(f"  {code:<{_WIDTH}}  {text}" for code, text in MEANINGS)))


VERBS = {
    "lock": "lock.lock",
    "semaphore": "semaphore.semaphore",
    "once": "once.once",
    "elect": "elect.elect",
    "transfer": "transfer.transfer",
    "leader": "leader.leader",
    "members": "members.members",
    "holders": "holders.holders",
    "top": "top.top",
    "resize": "resize.resize",
    "break": "breaking.break_",
    "sessions": "sessions.sessions",
    "doctor": "doctor.doctor",
    "serve": "serve.serve",
    "demo": "demo.demo",
    "simulate": "simulate.simulate",
}
"""By name, in the order of the help: the module below ``consul_coord.cli``, and the command in it."""


class _Verbs(click.Group):
    """The group of all verbs, of which each is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click calls it
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as click calls it
        return verb(cmd_name) if cmd_name in VERBS else None


def verb(name: str) -> click.Command:
    """Return one of ``VERBS``."""
    module, _, attribute = VERBS[name].partition(".")
    home = f"consul_coord.cli.{module}"
    __import__(home)  # not by importlib: ``python -X importtime`` does not see that
    command: click.Command = getattr(sys.modules[home], attribute)
    return command


@click.group(
    cls=_Verbs,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="consul-coord", message="%(prog)s %(version)s")
def app() -> None:
    """Coordinate programs through Consul."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    code = _run(arguments)
    error = _discard_unwritable(sys.stdout)
    if error is not None and code == ExitCode.DONE:  # part of the answer is lost
        _tell(f"consul-coord: can't write: {error.strerror}\n")
        code = ExitCode.CONFIG
    _discard_unwritable(sys.stderr)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller has closed it
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - for good
    try:
        result = app.main(args=arguments, prog_name="consul-coord", standalone_mode=False)
    except click.ClickException as error:
        with suppress(OSError):  # nobody reads it
            error.show()
        return error.exit_code
    except MissingExtra as error:
        return report(error)
    except (click.Abort, KeyboardInterrupt, SystemExit) as end:
        # When nobody reads the answer any more, click ends by SystemExit, with the code that means "no".
        return SIGNALLED + (signal.SIGPIPE if isinstance(end, SystemExit) else signal.SIGINT)
    except Exception as error:  # noqa: BLE001 - the last place that can tell of a bug
        if isinstance(error, OSError) and error.errno in _UNWRITABLE | _USED_UP:
            unwritable = error.errno in _UNWRITABLE
            what = "can't write" if unwritable else "the system gives no more processes or files"
            _tell(f"consul-coord: {what}: {error.strerror}\n")
            return ExitCode.CONFIG
        import traceback

        _tell(
            f"consul-coord {__version__}: this is a bug in consul-coord; please report it with these lines:\n"
            f"{traceback.format_exc()}"
        )
        return ExitCode.BUG
    return result if isinstance(result, int) else ExitCode.DONE


def _tell(text: str) -> None:
    with suppress(OSError):  # nobody reads it
        click.echo(text, err=True, nl=False)


def _discard_unwritable(stream: TextIO) -> OSError | None:
    """Discard buffered output that can't be written, and return the error.

    Otherwise Python tries to write it again at its exit, and ends with 120.
    """
    try:
        stream.flush()
    except ValueError:  # it is closed
        return None
    except OSError as error:
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        return error
    return None
