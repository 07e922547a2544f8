"""The agents of a run with several: each one way to the servers, which may be gone or silent for a while.

Rules
- An agent that is gone refuses connections, and breaks those that there are.
- A silent agent takes requests and answers nothing. When it goes on, it carries out what it has taken, for
  clients that may have given up long ago.
- A stray agent belongs to another cluster. Every request to it breaks a rule, except those that tell the
  clusters apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consul_coord.config import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.testing.simulation.cluster import Cluster
    from consul_coord.testing.simulation.network import Exchange, Link

_OF_A_CHECK: Final = ("/v1/status/", "/v1/catalog/service/consul", "/v1/session/renew/")


class SimAgent:
    """One agent."""

    def __init__(self, name: str, cluster: Cluster, *, stray: bool = False) -> None:
        self.address = f"http://{name}:8500"
        self.cluster = cluster
        self.stray = stray
        self.gone = False
        self.silent = False
        self.between: Callable[[], object] | None = None
        """The act that is due once it has answered a process that waits for another answer."""
        self.exchanges: dict[Exchange, None] = {}
        """Those that somebody waits for."""
        self._kept: list[Callable[[], object]] = []

    @property
    def serves(self) -> bool:
        """Whether it answers, for the clients' own cluster."""
        return not (self.stray or self.gone or self.silent)

    def admit(self, action: Callable[[], object], *, late: Callable[[], object] | None = None) -> None:
        """Do something now. A silent agent does it when it goes on, or ``late`` instead."""
        if self.silent:
            self._kept.append(late or action)
        else:
            action()

    def has_answered(self, link: Link) -> None:
        """Do what is to be done between two answers, if this process waits for another one."""
        waits = any(one.link is link and not one.is_query for one in self.exchanges)
        if self.between is not None and waits:
            act, self.between = self.between, None
            act()

    def die(self) -> None:
        """Be gone."""
        self.gone = True
        for exchange in list(self.exchanges):
            exchange.break_off()

    def fall_silent(self) -> None:
        """Answer nothing."""
        self.silent = True

    def come_back(self) -> None:
        """Serve again, and carry out what was taken meanwhile."""
        self.gone = self.silent = False
        self.between = None
        kept, self._kept = self._kept, []
        for action in kept:
            action()

    def cut(self, link: Link) -> None:
        """End what one process waits for here."""
        for exchange in list(self.exchanges):
            if exchange.link is link:
                exchange.break_off()


def may_ask_anybody(path: str) -> bool:
    """Return whether a request only finds out what an agent is."""
    return path.startswith(_OF_A_CHECK)


def settings_of(agents: tuple[SimAgent, ...]) -> Settings:
    """Return the settings of a client that knows these."""
    return Settings.resolve(address=[agent.address for agent in agents], environ={})
