"""``consul-coord doctor``: whether everything is there that locks need, and what is missing.

``checks`` looks, and this module tells.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from typing import TYPE_CHECKING

import click

from consul_coord.cli import options, tables
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.doctor.checks import Examination, examine
from consul_coord.cli.output import Reporter
from consul_coord.http.failures import printable

if TYPE_CHECKING:
    from consul_coord.cli.doctor.checks import Finding, Kind
    from consul_coord.cli.options import Agent

PATIENCE = 3.0
"""Seconds after which an agent that does not answer is taken for absent."""

EPILOG = """\b
Examples:
  consul-coord doctor
  consul-coord doctor jobs/nightly
  consul-coord doctor backups/slots --kind semaphore --json

With a KEY, doctor tries the permissions for it: by requests that can't succeed where that is enough, and with
a session and a key beside the queue that it removes at the end. It prints the rules that the token lacks.
"""

_INDENT = " " * 22
_STYLES = {"ok": "green", "warning": "yellow", "fault": "red"}


@click.command(epilog=EPILOG)
@click.argument("key", required=False)
@click.option(
    "--kind",
    type=click.Choice(["lock", "semaphore"]),
    help="The purpose of KEY (default: that of the existing key, or a lock).",
)
@options.connection
def doctor(*, key: str | None, kind: Kind | None, agent: Agent, as_json: bool) -> int:
    """Check whether locks work here, and with this token.

    Exits with 1 when there is a fault. A warning is no fault.
    """
    reporter = Reporter(as_json=as_json)

    def work() -> int:
        faults = 0
        with agent.client(timeout=PATIENCE) as client:
            for finding in examine(Examination(client, key=key, kind=kind)):
                _tell(finding, as_json=as_json)
                faults += finding.status == "fault"
        return ExitCode.NO if faults else ExitCode.DONE

    return reporter.answer(work)


def _tell(finding: Finding, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(finding)))
        return
    status = tables.styled(f"{finding.status:<7}", sys.stdout, colour=_STYLES[finding.status])
    text = printable(finding.text)
    width = max(40, tables.terminal_size()[0] - len(_INDENT)) if sys.stdout.isatty() else len(text) + 1
    first, *others = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    click.echo(f"{status}  {finding.what:<11}  {first}")
    for line in (*others, *finding.rules):
        click.echo(_INDENT + line)
