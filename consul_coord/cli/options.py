"""Options that several verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

SECONDS = click.FloatRange(min=0)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")


def connection(function: F) -> F:
    """Add the options that say which Consul agent is spoken to, and how the outcome is printed."""
    for option in (
        as_json,
        click.option(
            "--token-file",
            metavar="FILE",
            help="File with the ACL token (else CONSUL_HTTP_TOKEN_FILE or CONSUL_HTTP_TOKEN).",
        ),
        click.option(
            "--address",
            metavar="ADDRESS",
            help="host:port, http(s)://host:port or unix:///path (else CONSUL_HTTP_ADDR or 127.0.0.1:8500).",
        ),
    ):
        function = option(function)
    return function
