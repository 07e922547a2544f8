"""Options that several verbs share."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from consul_coord.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord import Client, Observer, SessionSpec

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")


class Typed(click.ParamType[T], ABC):
    """A value of an option. Any other text is refused by a sentence that says what is expected."""

    expected: str

    @abstractmethod
    def read(self, text: str) -> T:
        """Return the value. Raises ValueError."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:  # noqa: ANN401 - as click has it
        """Read what was typed, or a default."""
        try:
            return self.read(str(value))
        except ValueError:
            self.fail(f"{str(value)!r} is not {self.expected}", param, ctx)


class Duration(Typed[float]):
    """Seconds, as a number or with units: ``90``, ``500ms``, ``5m``, ``1h30m``."""

    name = "duration"

    def __init__(self, *, minimum: float = 0.0) -> None:
        self._minimum = minimum
        least = f" of at least {minimum:g} s" if minimum else ""
        self.expected = f"a time{least}: give seconds, or a number with a unit, as 500ms, 90s or 5m"

    def read(self, text: str) -> float:
        """Return the seconds. Raises ValueError."""
        from consul_coord.http.endpoints._durations import to_seconds

        try:
            seconds = float(text)
        except ValueError:
            seconds = to_seconds(text)
        if not self._minimum <= seconds < float("inf"):
            raise ValueError(text)
        return seconds


class Whole(Typed[int]):
    """A whole number, perhaps within bounds."""

    name = "number"

    def __init__(self, least: int | None = None, most: int | None = None) -> None:
        self._least = least
        self._most = most
        bounds = (
            "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        )
        self.expected = f"a whole number{bounds}"

    def read(self, text: str) -> int:
        """Return the number. Raises ValueError."""
        number = int(text)
        too_small = self._least is not None and number < self._least
        if too_small or (self._most is not None and number > self._most):
            raise ValueError(text)
        return number


class Running(click.Command):
    """A verb that runs a command: without a -- before that, its options would be taken for the verb's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments. Raises UsageError also for an option that may be meant for the command."""
        given = list(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            message = f"{error.message.rstrip('.')}: write the command and its options after --"
            raise click.UsageError(message, ctx=ctx) from error
        command: tuple[str, ...] = ctx.params.get("command") or ()  # none while a shell completes the line
        if command and "--" not in given:
            after = given[given.index(command[0]) + 1 :]
            late = next((each for each in after if each.startswith("-") and each != "-"), None)
            if late is not None:
                message = f"{late!r} stands after the command: write -- before the command"
                raise click.UsageError(message, ctx=ctx)
        return rest


DURATION = Duration()
LOCK_DELAY = Duration(minimum=0.05)
"""A shorter one is refused by ``SessionSpec``."""
EXIT_CODE = Whole(0, 255)
MAX_HOLD = click.option(
    "--max-hold",
    type=Duration(minimum=0.1),
    metavar="TIME",
    help="How long it may be held: a command that goes on for longer is stopped, with exit code 76.",
)

quiet = click.option("-q", "--quiet", is_flag=True, help="Report problems only.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")


class Agent(NamedTuple):
    """Which Consul agent to talk to, and where it shall look."""

    address: tuple[str, ...]
    """Empty for what the environment says."""
    token_file: str | None
    ca_cert: str | None
    datacenter: str | None
    namespace: str | None
    partition: str | None

    def client(
        self,
        *,
        session: SessionSpec | None = None,
        observer: Observer | None = None,
        timeout: float | None = None,
    ) -> Client:
        """Make a client. Raises ConfigError."""
        from consul_coord import Client, TLSConfig

        for address in self.address:
            if self.ca_cert is not None and address.startswith(("http://", "unix:")):
                message = f"--ca-cert is for https, and --address is {address}: give https://host:port"
                raise ConfigError(message)
        settings: dict[str, Any] = self._asdict() | {"address": self.address or None}
        ca_cert = settings.pop("ca_cert")
        if timeout is not None:
            settings["timeout"] = timeout
        tls = None if ca_cert is None else TLSConfig(ca_cert=ca_cert)
        return Client(**settings, tls=tls, session=session, observer=observer)


_CONNECTION = (
    click.option(
        "--address",
        metavar="ADDRESS",
        multiple=True,
        help="host:port, http(s)://host:port or unix:///path (otherwise CONSUL_HTTP_ADDR or 127.0.0.1:8500); "
        "once for each agent of the cluster that may be used.",
    ),
    click.option(
        "--token-file",
        metavar="FILE",
        help="File with the ACL token (otherwise CONSUL_HTTP_TOKEN_FILE or CONSUL_HTTP_TOKEN).",
    ),
    click.option(
        "--ca-cert",
        metavar="FILE",
        help="File with the certificates to trust, for https (otherwise CONSUL_CACERT).",
    ),
    click.option("--datacenter", metavar="NAME", help="Datacenter to use (default: the agent's own)."),
    click.option(
        "--namespace", metavar="NAME", help="Namespace, in Consul Enterprise (otherwise CONSUL_NAMESPACE)."
    ),
    click.option(
        "--partition",
        metavar="NAME",
        help="Partition, in Consul Enterprise (otherwise CONSUL_PARTITION).",
    ),
    as_json,
)


def connection(function: F) -> F:
    """Add the options that name the Consul agent, as ``agent``, and ``as_json``."""

    @functools.wraps(function)
    def with_agent(*arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - passed through
        agent = Agent(**{name: settings.pop(name) for name in Agent._fields})
        return function(*arguments, agent=agent, **settings)

    decorated: Any = with_agent
    for option in reversed(_CONNECTION):
        decorated = option(decorated)
    result: F = decorated
    return result
