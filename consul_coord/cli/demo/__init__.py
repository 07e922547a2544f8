"""``consul-coord demo``: several processes contend for a lock, one is killed, another takes over.

``stage`` runs the play, ``worker`` is the program of each process, ``verdict`` checks what came of it.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import click

from consul_coord import Client, Lock, SessionSpec
from consul_coord.cli import options
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.output import Reporter
from consul_coord.extras import needs

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "demo/lock"
LOCK_DELAY = 3.0
"""At most. The lease is no longer than that, so it has to outlast a hiccup of the machine."""
EMBEDDED_TTL = 2.0
REAL_TTL = 10.0
"""The least that Consul servers take, unless they are set up otherwise."""
PATIENCE = 3.0
"""Seconds after which an agent that does not answer is taken for absent."""

EPILOG = """\b
Examples:
  consul-coord demo
  consul-coord demo --real http://127.0.0.1:8500

Without --real no Consul is needed: a server is started, and stopped at the end.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--real",
    metavar="ADDRESS",
    help="Use the Consul agent there, and a key of its own that is deleted after.",
)
@click.option(
    "--ttl",
    type=options.Duration(minimum=0.5),
    metavar="TIME",
    help=f"TTL of the sessions (default: {EMBEDDED_TTL:g}, with --real {REAL_TTL:g}).",
)
def demo(*, real: str | None, ttl: float | None) -> int:
    """Show four processes contend for a lock; one is killed.

    Exits with 0 if the fences rose and no two holds overlapped, else with 1.
    """
    if real is None:
        return Reporter().answer(lambda: _embedded(ttl=ttl or EMBEDDED_TTL))
    return Reporter().answer(lambda: _on_agent(real, ttl=ttl or REAL_TTL))


def _embedded(*, ttl: float) -> int:
    from consul_coord.server import ReferenceServer, ServerConfig

    with ReferenceServer(config=ServerConfig(session_ttl_min=min(ttl, 10.0))) as server:
        return _play(server.address, KEY, ttl=ttl, environ=_without_settings(os.environ))


def _on_agent(address: str, *, ttl: float) -> int:
    key = f"{KEY}-{uuid.uuid4()}"
    with Client(address=address, timeout=PATIENCE) as client:
        lock = Lock(client, key)
        lock.holder()  # tells at once that there is no agent, or no permission
        try:
            return _play(address, key, ttl=ttl, environ=os.environ)
        finally:
            lock.destroy()


def _play(address: str, key: str, *, ttl: float, environ: Mapping[str, str]) -> int:
    with needs("cli"):
        from consul_coord.cli.demo.stage import Stage
    spec = SessionSpec(ttl=ttl, lock_delay=min(ttl, LOCK_DELAY))
    with Stage(address=address, key=key, spec=spec, environ=environ) as stage:
        return ExitCode.DONE if stage.play() else ExitCode.NO


def _without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what it says about another Consul than the embedded one."""
    return {name: value for name, value in environ.items() if not name.startswith("CONSUL_")}
