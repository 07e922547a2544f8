"""Start a cluster of real Consul servers for tests, with client agents attached.

Rules
- Every agent has a loopback address of its own: servers from 127.0.0.11 on, client agents from 127.0.0.21 on.
  So a link between two of them has two addresses by which it can be cut.
- All of them keep their data until the cluster is closed: what is killed comes back as the one it was.
- What holds for one agent (`consul_coord.testing.agent`) holds for each.

POSIX only, and only where all of 127.0.0.0/8 is on the loopback interface, as Linux has it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import tempfile
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consul_coord.testing.agent import AgentError, PortsTakenError, RealAgent, merged, remove
from consul_coord.testing.ports import Ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

_POLL: Final = 0.05
_ATTEMPTS: Final = 5
_CLIENT: Final = {"server": False, "bootstrap_expect": 0}

NODE_BACK: Final = 90.0
"""Seconds that an agent may take to be usable: it puts a node that was deregistered back once a minute."""


class RealCluster:
    """Consul servers that form one cluster, and client agents attached to them; a context manager.

    Entered, every agent is usable and knows the leader. Servers are named by their index, from 0. ``size`` is
    the number of servers, ``clients`` that of client agents. ``config`` goes to every agent, as for
    ``RealAgent``.
    """

    def __init__(
        self,
        *,
        size: int = 3,
        clients: int = 0,
        binary: Path | None = None,
        config: Mapping[str, object] | None = None,
        start_timeout: float = NODE_BACK,
    ) -> None:
        self._servers = {f"server{i}": f"127.0.0.{11 + i}" for i in range(size)}
        self._attached = {f"client{i}": f"127.0.0.{21 + i}" for i in range(clients)}
        self._binary = binary
        self._config = dict(config or {})
        self._start_timeout = start_timeout
        self._agents: tuple[RealAgent, ...] = ()
        self._clients: tuple[RealAgent, ...] = ()
        self._finalizers: list[weakref.finalize[..., RealCluster]] = []

    def __enter__(self) -> Self:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start_all()
            except BaseException as error:
                self.close()
                if not isinstance(error, PortsTakenError) or attempt == _ATTEMPTS:
                    raise
            else:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def agents(self) -> tuple[RealAgent, ...]:
        """The servers, for all that an agent can do besides (pause, resume, request)."""
        return self._agents

    @property
    def clients(self) -> tuple[RealAgent, ...]:
        """The client agents."""
        return self._clients

    @property
    def addresses(self) -> tuple[str, ...]:
        """The HTTP addresses of all servers, running or not."""
        return tuple(agent.address for agent in self._agents)

    def leader(self) -> int | None:
        """Return the leader's index, as a running server names it, or None when none names one that runs.

        Just after a leader's death the others may still name it: that one does not count.
        """
        running = {agent.rpc_address: i for i, agent in enumerate(self._agents) if agent.is_running}
        for i in running.values():
            with contextlib.suppress(OSError, http.client.HTTPException, json.JSONDecodeError):
                _, named = self._agents[i].request("GET", "/v1/status/leader")
                if (leader := running.get(json.loads(named))) is not None:
                    return leader
        return None

    def wait_for_leader(self, *, timeout: float = 30.0) -> int:
        """Return the leader's index as soon as there is a running one. ``AgentError`` after ``timeout`` s."""
        deadline = time.monotonic() + timeout
        while (leader := self.leader()) is None:
            if time.monotonic() > deadline:
                raise AgentError(f"no leader within {timeout} s")
            time.sleep(_POLL)
        return leader

    def kill(self, index: int) -> None:
        """Kill one server as a crash would."""
        self._agents[index].kill()

    def start(self, index: int) -> None:
        """Start one killed server again, with its data, and wait until it is usable (needs a quorum)."""
        agent = self._agents[index]
        agent.launch()
        agent.wait_ready()

    def heal(self) -> None:
        """Let every paused agent go on, start every dead one again, and wait until all are usable."""
        everybody = (*self._agents, *self._clients)
        for agent in everybody:
            agent.resume()
            if not agent.is_running:
                agent.launch()
        for agent in everybody:
            agent.wait_ready()

    def close(self) -> None:
        """Kill all agents and remove their data. Idempotent."""
        for agent in (*self._clients, *self._agents):
            agent.close()
        self._agents = self._clients = ()
        while self._finalizers:
            self._finalizers.pop()()

    def _start_all(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="consul-cluster-"))
        self._finalizers.append(weakref.finalize(self, remove, folder, os.getpid()))
        hosts = {**self._servers, **self._attached}
        ports = {name: Ports.free(host) for name, host in hosts.items()}
        together: dict[str, object] = {
            "bootstrap_expect": len(self._servers),
            "retry_join": [f"{host}:{ports[name].serf_lan}" for name, host in self._servers.items()],
            "retry_interval": "200ms",
        }

        def agent(name: str, own: Mapping[str, object]) -> RealAgent:
            return RealAgent(
                binary=self._binary,
                host=hosts[name],
                name=name,
                ports=ports[name],
                data_dir=folder / name,
                config=merged(merged(together, own), self._config),
                start_timeout=self._start_timeout,
            )

        self._agents = tuple(agent(name, {}) for name in self._servers)
        self._clients = tuple(agent(name, _CLIENT) for name in self._attached)
        for each in (*self._agents, *self._clients):
            each.launch()
        for each in (*self._agents, *self._clients):
            each.wait_ready()
