"""The verbs put together, and what an error of theirs becomes: one line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from consul_coord import __version__
from consul_coord.cli.breaking import break_
from consul_coord.cli.codes import MEANINGS, SIGNALLED, ExitCode
from consul_coord.cli.demo import demo
from consul_coord.cli.doctor import doctor
from consul_coord.cli.elect import elect
from consul_coord.cli.extras import report
from consul_coord.cli.holders import holders
from consul_coord.cli.leader import leader
from consul_coord.cli.lock import lock
from consul_coord.cli.semaphore import semaphore
from consul_coord.cli.serve import serve
from consul_coord.cli.sessions import sessions
from consul_coord.cli.simulate import simulate
from consul_coord.cli.top import top
from consul_coord.extras import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""A full disk, say, under the file that stdout goes to."""
_WIDTH = max(len(code) for code, _ in MEANINGS)
EPILOG = "\n".join(("\b", "Exit codes:", *(f"  {code:<{_WIDTH}}  {text}" for code, text in MEANINGS)))


@click.group(
    epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="consul-coord", message="%(prog)s %(version)s")
def app() -> None:
    """Coordinate programs through Consul."""


for verb in (lock, semaphore, elect, leader, holders, top, break_, sessions, doctor, serve, demo, simulate):
    app.add_command(verb)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    try:
        result = app.main(args=arguments, prog_name="consul-coord", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except MissingExtra as error:
        return report(error)
    except (click.Abort, KeyboardInterrupt):
        return SIGNALLED + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - the last place that can tell of a bug
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            click.echo(f"consul-coord: can't write: {error.strerror}", err=True)
            _drop_output()
            return ExitCode.CONFIG
        click.echo(
            f"consul-coord {__version__}: this is a bug in consul-coord; please report it with these lines:\n"
            f"{traceback.format_exc()}",
            err=True,
            nl=False,
        )
        return ExitCode.BUG
    return result if isinstance(result, int) else ExitCode.DONE


def _drop_output() -> None:
    """Let what stdout still has go nowhere: else Python tries it again at its exit, and ends with 120."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
