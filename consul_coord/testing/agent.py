"""Start a real Consul agent for tests.

Rules
- An agent listens on loopback only, on ports of its own. It starts again with others when it loses a race
  for them.
- "Started" means usable: there is a leader, and a session with Consul's default checks can be created. A mark
  shows that this agent answers, because after a lost race another one answers on its port.
- An agent has a process group of its own, so that Ctrl-C in a terminal reaches the tests and not the agent
  under them.
- Each agent is ended and reaped: by ``close``, when the object goes away, or at interpreter exit. A forked
  child never ends its parent's agent. An interpreter that is killed outright leaves its agents running: only
  the kernel could prevent that, through code between fork and exec, which is not safe in a program with
  threads.
- Consul's own log goes to a file in the agent's temporary folder, and its end into the error when a start
  fails.

POSIX only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from consul_coord.testing.binary import find_consul, version_of
from consul_coord.testing.ports import Ports

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["AgentError", "Ports", "PortsTakenError", "RealAgent", "find_consul", "merged", "remove"]

_POLL: Final = 0.05
_ATTEMPTS: Final = 5
_MARK: Final = "started-by"
_LOG_TAIL: Final = 2_000
_UNUSED_PORTS: Final = {"dns": (1, 0, 0), "grpc": (1, 3, 0), "grpc_tls": (1, 14, 0)}
"""Ports that a ``-dev`` agent would open besides, each with the version that knows it.

An earlier one refuses to start with it.
"""


class AgentError(RuntimeError):
    """A Consul agent could not be started, or is not in the state that was asked for."""


class PortsTakenError(AgentError):
    """Another program took one of the agent's ports."""


class RealAgent:
    """One Consul agent as a child process: a context manager that yields itself, started and usable.

    - ``binary``: the program; ``find_consul()`` when not given.
    - ``data_dir``: run a persistent single server in this folder, which stays the caller's, instead of a
      ``-dev`` agent. Only then do keys and sessions outlive ``kill`` and ``restart``.
    - ``config``: Consul settings, merged into the agent's own key by key (nested tables too), the caller's
      winning. The own ones lower ``session_ttl_min`` to 200 ms, so that a test may see a session expire.
    - ``token``: used for the agent's own requests when ``config`` switches ACLs on. Never logged or shown.
    - ``start_timeout``: seconds that a start or restart may take.

    Ports are chosen at the first start and then kept. Not thread-safe: one thread at a time may stop and
    start an agent.
    """

    def __init__(
        self,
        *,
        binary: Path | None = None,
        host: str = "127.0.0.1",
        name: str = "node1",
        data_dir: Path | None = None,
        config: Mapping[str, object] | None = None,
        ports: Ports | None = None,
        token: str | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        self._binary = binary
        self._host = host
        self._name = name
        self._data_dir = data_dir
        self._config = dict(config or {})
        self._ports = ports
        self._token = token
        self._start_timeout = start_timeout
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._mark = str(uuid.uuid4())
        self._finalizers: list[weakref.finalize[..., RealAgent]] = []

    def __repr__(self) -> str:
        where = self.address if self._ports else "no ports yet"
        return f"<RealAgent {self._name} {where} {'running' if self.is_running else 'not running'}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The name of its node."""
        return self._name

    @property
    def host(self) -> str:
        """The loopback address that it listens on."""
        return self._host

    @property
    def address(self) -> str:
        """The HTTP address, as ``http://host:port``. ``AgentError`` before the first start."""
        return f"http://{self._host}:{self._chosen_ports().http}"

    @property
    def rpc_address(self) -> str:
        """The address under which Consul names this server as leader, as ``host:port``."""
        return f"{self._host}:{self._chosen_ports().server}"

    @property
    def is_running(self) -> bool:
        """Whether the process is alive; a paused one is."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id. ``AgentError`` when not running."""
        return self._alive().pid

    @property
    def log(self) -> str:
        """Consul's log since its last start."""
        if self._folder is None:
            return ""
        return (self._folder / "consul.log").read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start the agent and wait until it is usable. ``AgentError`` if it runs or takes too long."""
        self._require_stopped()
        fixed = self._ports is not None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self.launch()
                self.wait_ready()
            except BaseException as error:
                self.close()
                if fixed or attempt == _ATTEMPTS or not isinstance(error, PortsTakenError):
                    raise
                self._ports = None
            else:
                return

    def launch(self) -> None:
        """Start the process without waiting for it to be usable."""
        self._require_stopped()
        binary = self._binary or find_consul()
        if binary is None:
            raise AgentError("no Consul binary: set CONSUL_BIN, or put one at .consul/consul or on PATH")
        if self._ports is None:
            self._ports = Ports.free(self._host)
        folder = self._working_folder()
        settings = folder / "config.json"
        settings.write_text(json.dumps(self._settings(self._ports, version_of(binary))), encoding="utf-8")
        mode = () if self._data_dir else ("-dev",)
        with (folder / "consul.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - the binary is the one that the user named or installed
                [binary, "agent", *mode, f"-config-file={settings}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._process = process
        self._paused = False
        self._finalizers.append(weakref.finalize(self, _end, process, os.getpid()))

    def wait_ready(self) -> None:
        """Wait until there is a leader and sessions can be created. ``AgentError`` if that takes too long."""
        deadline = time.monotonic() + self._start_timeout
        while not self._is_ready():
            if not self.is_running:
                kind = PortsTakenError if "address already in use" in self.log else AgentError
                raise kind(f"{self!r}: ended during its start; {self._log_end()}")
            if time.monotonic() > deadline:
                raise AgentError(f"{self!r}: not usable after {self._start_timeout} s; {self._log_end()}")
            time.sleep(_POLL)

    def pause(self) -> None:
        """Stop the process in its tracks (SIGSTOP); return when it stands still.

        The kernel goes on accepting connections for it, which then get no answer.
        """
        if self._paused:
            return
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)
        self._paused = True

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT). Does nothing when it is not paused."""
        if self._paused:
            os.kill(self.pid, signal.SIGCONT)
            self._paused = False

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would, and reap it. Does nothing when not running."""
        self._end_process(grace=0.0)

    def terminate(self, *, timeout: float = 10.0) -> None:
        """Ask the process to end (SIGTERM), kill it after ``timeout`` s, and reap it.

        Does nothing when not running.
        """
        self._end_process(grace=timeout)

    def restart(self) -> None:
        """Start again on the same ports and wait until usable; a running agent is terminated first.

        Data survives only with ``data_dir``. ``PortsTakenError`` when another program took a port meanwhile.
        """
        self.terminate()
        self.launch()
        self.wait_ready()

    def close(self) -> None:
        """Kill and reap the process, and remove the temporary folder with the log. Idempotent."""
        while self._finalizers:
            self._finalizers.pop()()
        self._process = None
        self._folder = None

    def request(
        self, method: str, path: str, body: bytes | None = None, *, timeout: float = 5.0
    ) -> tuple[int, bytes]:
        """Send one HTTP request, past every proxy, and return status and body.

        ``OSError`` or ``http.client.HTTPException`` when no reply comes.
        """
        connection = http.client.HTTPConnection(self._host, self._chosen_ports().http, timeout=timeout)
        headers = {"X-Consul-Token": self._token} if self._token else {}
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=headers)
            # With "Connection: close" the socket is the reply's, and not the connection's any more.
            with connection.getresponse() as reply:
                return reply.status, reply.read()

    def _settings(self, ports: Ports, version: tuple[int, int, int]) -> Mapping[str, object]:
        unused = {name: -1 for name, since in _UNUSED_PORTS.items() if version >= since}
        own: dict[str, object] = {
            "node_name": self._name,
            "bind_addr": self._host,
            "client_addr": self._host,
            "ports": {**asdict(ports), **unused},
            "node_meta": {_MARK: self._mark},
            "session_ttl_min": "200ms",
            "disable_update_check": True,
            "performance": {"raft_multiplier": 1},
        }
        if self._data_dir:
            own |= {"server": True, "bootstrap_expect": 1, "data_dir": str(self._data_dir)}
        return merged(own, self._config)

    def _is_ready(self) -> bool:
        try:
            return self._is_itself() and self._has_leader() and self._takes_sessions()
        except (OSError, http.client.HTTPException):
            return False

    def _is_itself(self) -> bool:
        status, body = self.request("GET", "/v1/agent/self")
        return status == http.HTTPStatus.OK and json.loads(body)["Meta"].get(_MARK) == self._mark

    def _has_leader(self) -> bool:
        status, body = self.request("GET", "/v1/status/leader")
        return status == http.HTTPStatus.OK and bool(json.loads(body))

    def _takes_sessions(self) -> bool:
        status, body = self.request("PUT", "/v1/session/create", b'{"TTL": "10s"}')
        if status != http.HTTPStatus.OK:
            return False
        self.request("PUT", f"/v1/session/destroy/{json.loads(body)['ID']}")
        return True

    def _chosen_ports(self) -> Ports:
        if self._ports is None:
            raise AgentError(f"agent {self._name} has no ports before its first start")
        return self._ports

    def _require_stopped(self) -> None:
        if self.is_running:
            raise AgentError(f"{self!r}: stop it first")

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise AgentError(f"{self!r}: start it first")
        return self._process

    def _working_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="consul-agent-"))
            self._finalizers.append(weakref.finalize(self, remove, self._folder, os.getpid()))
        return self._folder

    def _log_end(self) -> str:
        return f"the end of its log:\n{self.log[-_LOG_TAIL:]}"

    def _end_process(self, *, grace: float) -> None:
        if not self.is_running:
            return
        process = self._alive()
        if grace:
            process.terminate()
            # A stopped process gets the signal only when it goes on.
            process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        _end(process, os.getpid())
        self._paused = False


def merged(own: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Return settings with others merged in, key by key and in nested tables too; the given ones win."""
    together = dict(own)
    for key, value in given.items():
        before = together.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            together[key] = merged(cast("Mapping[str, object]", before), cast("Mapping[str, object]", value))
        else:
            together[key] = value
    return together


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner and process.poll() is None:
        process.kill()
        process.wait()


def remove(folder: Path, owner: int) -> None:
    """Remove a folder, unless this is a forked child of the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
