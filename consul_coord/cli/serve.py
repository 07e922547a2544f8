"""``consul-coord serve``: the reference server in the foreground.

Rules
- The first line on stdout is the address, and comes when requests are answered there.
- INT and TERM end it with code 0, after the answers that are due.
- It listens on loopback only, unless ``--allow-remote`` says otherwise.
- It stands for an agent to programs of any kind, so its writes take as long as an agent's, unless the
  settings say otherwise.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from consul_coord import ConfigError
from consul_coord.cli import options
from consul_coord.cli.codes import ExitCode
from consul_coord.cli.inbox import Inbox

if TYPE_CHECKING:
    from consul_coord.server import ServerConfig

_PLAIN = frozenset({bool, int, float, str})
"""The kinds of settings that JSON can express."""

_WRITE_TIME = 0.01
"""Seconds. An agent writes to its disk first, and clients come to rely on reads that overtake a write."""

EPILOG = """\b
Examples:
  consul-coord serve --port 8500
  echo '{"session_ttl_min": 1}' >server.json; consul-coord serve --config server.json

It keeps everything in memory, and is meant for tests and trials.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="H", help="Address or name to listen on."
)
@click.option(
    "--port",
    type=options.Whole(0, 65535),
    default=0,
    show_default=True,
    metavar="N",
    help="Port; 0 takes a free one.",
)
@click.option("--uds", metavar="PATH", help="Listen on this unix socket instead.")
@click.option(
    "--node", default="node1", show_default=True, metavar="NAME", help="Name of the agent's own node."
)
@click.option("--node-id", default="", metavar="UUID", help="Id of that node; random when not given.")
@click.option(
    "--node-meta",
    multiple=True,
    metavar="KEY:VALUE",
    help="Metadata of that node; may be repeated.",
)
@click.option("--config", metavar="FILE", help="JSON file with settings of the server.")
@click.option("--allow-remote", is_flag=True, help="Allow an address that other machines can reach.")
@options.as_json
def serve(
    *,
    host: str,
    port: int,
    uds: str | None,
    node: str,
    node_id: str,
    node_meta: tuple[str, ...],
    config: str | None,
    allow_remote: bool,
    as_json: bool,
) -> int:
    """Serve a Consul agent in memory until INT or TERM."""
    from consul_coord.server import ReferenceServer, ServerConfig

    inbox = Inbox()
    try:
        settings: dict[str, Any] = {"write_time": _WRITE_TIME}
        if config is not None:
            settings |= read_config(config, ServerConfig)
        if allow_remote:
            settings["allow_remote"] = True
        if node_meta:
            pairs = {key: value for key, _, value in (pair.partition(":") for pair in node_meta)}
            settings["node_meta"] = settings.get("node_meta", {}) | pairs
        made = ServerConfig(**settings)
    except ConfigError as error:
        return _refuse(str(error), as_json=as_json)
    try:
        server = ReferenceServer(host=host, port=port, uds=uds, node=node, node_id=node_id, config=made)
    except ValueError as error:
        if "node_id" in str(error):
            raise click.BadParameter(f"{node_id!r} is no UUID", param_hint="--node-id") from error
        raise click.UsageError(
            f"{host!r} is not loopback, other machines could reach it: give --allow-remote if that is meant"
        ) from error
    with inbox.signals({signal.SIGINT, signal.SIGTERM}):
        try:
            server.start()
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE and not uds
            way_out = ": use the server that runs there, or another --port" if taken else ""
            return _refuse(
                f"can't listen on {uds or f'{host}:{port}'}: {error.strerror}{way_out}", as_json=as_json
            )
        try:
            click.echo(
                json.dumps({"event": "listening", "address": server.address}) if as_json else server.address
            )
            inbox.get()
        finally:
            server.stop()
    return ExitCode.DONE


def _refuse(why: str, *, as_json: bool) -> int:
    from consul_coord.cli.output import Reporter  # which a server that starts does without

    return Reporter(as_json=as_json).fail(ExitCode.CONFIG, why)


def read_config(path: str, kind: type[ServerConfig]) -> dict[str, Any]:
    """Return the settings in a JSON file. Raises ConfigError naming what is wrong."""
    try:
        settings: Any = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must hold one JSON object")
    named = cast("dict[str, Any]", settings)
    acl = _acl(path, named.pop("acl")) if "acl" in named else {}
    known = {field.name: field.default for field in dataclasses.fields(kind) if type(field.default) in _PLAIN}
    known["node_meta"] = {"rack": "r1"}
    for name, value in named.items():
        if name not in known:
            raise ConfigError(
                f"{path}: unknown field {name!r}; there are {', '.join(sorted({*known, 'acl'}))}"
            )
        if not _fits(value, known[name]):
            raise ConfigError(f"{path}: {name} takes a value like {json.dumps(known[name])}")
    return named | acl


def _acl(path: str, shown: object) -> dict[str, Any]:
    from consul_coord.server.acl_json import acl_of

    try:
        return {"acl": acl_of(shown)}
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _fits(value: object, default: object) -> bool:
    kind, kinds = type(value), {int, float} if type(default) is float else {type(default)}
    if isinstance(value, dict) and dict in kinds:
        texts = cast("dict[str, object]", value).values()
        return all(isinstance(each, str) for each in texts)
    return kind in kinds
