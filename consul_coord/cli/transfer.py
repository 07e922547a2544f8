"""``consul-coord transfer``: have a leader hand over to a candidate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from consul_coord import Lock, TxnFailed, TxnOp
from consul_coord.cli import handover, options
from consul_coord.cli.breaking import is_id
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.recipes.contend import queue as waitqueue

if TYPE_CHECKING:
    from consul_coord import Client
    from consul_coord.cli.options import Agent

EPILOG = """\b
Examples:
  consul-coord transfer service/scheduler 3f0c8c8e
  consul-coord transfer service/scheduler 3f0c8c8e --timeout 5m

SESSION is that of a waiting candidate, or the beginning of it, as "holders" shows it. The leader has to be a
"consul-coord elect": it ends its command with TERM, lets it finish, and hands over. The other candidates let
that one go first. The exit code is 1 when there is no such candidate, or the leader did not hand over in
time. Then the leader goes on leading, unless its command is ending already: the message says so.
"""

_LOOK = 0.2
"""Seconds between two looks at who leads."""


@click.command(epilog=EPILOG)
@click.argument("key")
@click.argument("session")
@click.option(
    "--timeout",
    type=options.DURATION,
    default=60.0,
    show_default=True,
    metavar="TIME",
    help="How long to wait for the leader to hand over.",
)
@options.connection
def transfer(*, key: str, session: str, timeout: float, agent: Agent, as_json: bool) -> int:
    """Have the leader of KEY hand over to the candidate SESSION."""
    reporter = Reporter(as_json=as_json)

    def work() -> int:
        with agent.client() as client:
            lock = Lock(client, key)
            holder = lock.holder()
            if holder is None or holder.lock_delay_active:
                return reporter.fail(ExitCode.NO, f"nobody leads {key}")
            found = [each.session for each in lock.contenders() if is_id(session, each.session)]
            if len(found) != 1:
                what = "no candidate" if not found else "more than one candidate"
                return reporter.fail(ExitCode.NO, f"{what} of the session {session} waits for {key}")
            heir = found[0]
            try:
                _ask(client, key, holder.session, heir)
            except TxnFailed:
                return reporter.fail(ExitCode.NO, f"the candidates of {key} have changed; try again")
            reporter.tell("asked", f"waiting for the leader of {key} to hand over", leader=holder.session)
            leader, taken_back = _follow(client, key, holder.session, heir, timeout)
        if leader == heir:
            reporter.tell("transferred", f"{heir} leads {key}", leader=heir)
            return ExitCode.DONE
        text = f"{leader or 'nobody'} leads {key} now, not {heir}"
        if leader == holder.session:
            waited = f"within {timeout:g} s"
            text = (
                f"the leader of {key} did not hand over {waited}"
                if taken_back
                else f"the command of the leader of {key} did not end {waited}: it hands over when it has"
            )
        return reporter.fail(ExitCode.NO, text)

    return reporter.answer(work)


def _ask(client: Client, key: str, leader: str, heir: str) -> None:
    """Leave the request. Raises TxnFailed when leader or heir have changed."""
    client.txn(
        TxnOp.check_session(key, leader),
        TxnOp.check_session(waitqueue.contender_key(key, heir), heir),
        TxnOp.set(handover.request_key(key), handover.request(leader, heir)),
    )


def _follow(client: Client, key: str, leader: str, heir: str, timeout: float) -> tuple[str, bool]:
    """Return who leads when that has changed, or the time is over, and whether the request was taken back."""
    deadline = time.monotonic() + timeout
    taken_back = False
    try:
        while True:
            pair = client.kv.get(key).value
            now = "" if pair is None or pair.session is None else pair.session
            if (now and now != leader) or time.monotonic() >= deadline:
                break
            time.sleep(_LOOK)
    finally:
        note = client.kv.get(handover.request_key(key)).value
        if note is not None and note.value == handover.request(leader, heir):
            taken_back = client.kv.delete(note.key, cas=note.modify_index)
    return now, taken_back
