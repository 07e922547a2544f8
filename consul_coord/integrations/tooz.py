"""A Consul driver for tooz: ``consul://[USER:PASSWORD@]HOST[:PORT][/NAMESPACE][?ttl=...&acl_token=...]``.

It takes the URLs of the driver that tooz had until its version 8, and locks the same keys.

===================================  =======================================
``NAMESPACE/locks/NAME``             a lock
``NAMESPACE/groups/GROUP``           that a group has been created
``NAMESPACE/groups/GROUP/members/``  its members, with their capabilities
``NAMESPACE/leaders/GROUP``          the lock of its leader
===================================  =======================================

Rules
- tooz's conventions hold. A lock belongs to its object, not to a thread. ``run_watchers`` reports elections,
  joins and leaves. A member that another process removes does not come back by itself.
- A member that only lost its session joins again by itself, and nobody has to beat: the client renews.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import unquote

from consul_coord import (
    AcquireTimeout,
    AlreadyHeld,
    Client,
    ConsulCoordError,
    Group,
    InvalidKey,
    Lock,
    LockLost,
    NotHeld,
    ReleaseOutcome,
    RequestTimeout,
    SessionSpec,
    TLSConfig,
    TransportError,
)
from consul_coord.integrations._names import encoded, id_of, name_of
from consul_coord.integrations._tooz import (
    Characteristics,
    CoordinatorResult,
    Driver,
    GroupAlreadyExist,
    GroupNotCreated,
    GroupNotEmpty,
    LeaderElected,
    MemberAlreadyExist,
    MemberNotJoined,
    NotImplementedByDriver,
    OperationTimedOut,
    ToozConnectionError,
    ToozError,
    ToozLock,
    collapse,
    dumps,
    loads,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from consul_coord import Hold
    from consul_coord.integrations._tooz import Capabilities, Url

    P = ParamSpec("P")
    T = TypeVar("T")

DEFAULT_PORT = 8500
DEFAULT_TTL = 15.0
DEFAULT_NAMESPACE = "tooz"
START_TIMEOUT = 2.0
"""Seconds that ``start`` waits for an answer."""
LONGEST_LOCK_DELAY = 60.0
"""Seconds; Consul shortens a longer one."""


@contextmanager
def _translated() -> Generator[None]:
    """Raise tooz's errors for this package's."""
    try:
        yield
    except RequestTimeout as error:
        raise OperationTimedOut(str(error)) from error
    except TransportError as error:
        raise ToozConnectionError(str(error)) from error
    except ConsulCoordError as error:
        raise ToozError(str(error)) from error


def _translating(function: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with _translated():
            return function(*args, **kwargs)

    return call


def _raise_trouble(error: AcquireTimeout) -> None:
    """Raise the error of the server or the network, if that stood in the way, and not another holder."""
    if error.blocker.kind == "unreachable" and error.__cause__ is not None:
        raise error.__cause__


class ConsulLock(ToozLock):
    """A lock of the driver: one object, one hold, whichever threads use it."""

    def __init__(self, name: bytes, client: Client, key: str, value: str) -> None:
        super().__init__(name)
        self._lock = Lock(client, key, value=value, accept_flags=(0,))
        self._held: dict[None, Hold] = {}
        """The present hold: of several threads that release it, one takes it out."""

    @_translating
    def acquire(
        self,
        blocking: bool | float = True,  # noqa: FBT001, FBT002 - tooz's, as the next ones
        shared: bool = False,  # noqa: FBT001, FBT002
        timeout: float | None = None,  # noqa: ARG002
    ) -> bool:
        """Take the lock; False when somebody else has it, or this object has.

        Raises ToozError when Consul could not be asked.

        ``blocking``: True to wait, False for one try, a number for so many seconds. ``shared`` is not to be
        had: the key is that of ``consul lock`` and of the former driver, which know of no shared locks.
        """
        if shared:
            raise NotImplementedByDriver("locks in Consul are not shared: consul_coord has a ReadWriteLock")
        seconds = None if blocking is True else float(blocking)
        try:
            hold = self._lock.acquire(timeout=seconds)
        except AlreadyHeld:
            return False
        except AcquireTimeout as error:
            _raise_trouble(error)
            return False
        self._held[None] = hold
        return True

    @_translating
    def release(self) -> bool:
        """Give the lock up; False when this object has not had it until now."""
        hold = self._held.pop(None, None)
        if hold is None:
            return False
        outcome = hold.release()
        if outcome is ReleaseOutcome.UNKNOWN:
            raise ToozConnectionError(f"{self._lock.key!r} is being released, but no answer has come yet")
        return outcome is ReleaseOutcome.RELEASED

    @property
    def acquired(self) -> bool:
        """Whether this object has the lock at this moment."""
        hold = self._held.get(None)
        return hold is not None and hold.is_held

    @property
    def fence(self) -> int | None:
        """The fencing token of the present hold, or None; tooz knows of none."""
        hold = self._held.get(None)
        return hold.fence if hold is not None and hold.is_held else None

    @_translating
    def is_still_owner(self) -> bool:
        """Return whether Consul, asked now, has the lock for this object."""
        hold = self._held.get(None)
        return hold is not None and hold.verify()

    @_translating
    def break_(self) -> bool:
        """Take the lock from whoever has it; False when nobody has."""
        holder = self._lock.holder()
        return holder is not None and bool(holder.session) and self._lock.break_lock(holder.session)

    def heartbeat(self) -> bool:
        """Return whether the lock is held: the client renews it by itself."""
        return self.acquired


class ConsulDriver(Driver):
    """The driver behind ``consul://``, ``consul+http://`` and ``consul+https://``.

    Options: ``namespace`` (or the URL's path; ``tooz`` if neither is given), ``ttl`` (15 s), ``lock_delay``
    (as the ``ttl``, 60 s at most), ``acl_token``, ``timeout`` (10 s for one request). With ``consul+https``
    also ``ca_cert``, ``client_cert``, ``client_key`` and ``verify``. Other settings come from the CONSUL_*
    variables, as for ``Client``.
    """

    CHARACTERISTICS = (
        Characteristics.NON_TIMEOUT_BASED,
        Characteristics.DISTRIBUTED_ACROSS_THREADS,
        Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        Characteristics.DISTRIBUTED_ACROSS_HOSTS,
        Characteristics.LINEARIZABLE,
        Characteristics.SERIALIZABLE,
    )

    def __init__(self, member_id: bytes | str, parsed_url: Url, options: dict[str, Any]) -> None:
        member = member_id.encode() if isinstance(member_id, str) else member_id
        super().__init__(member, parsed_url, options)
        found = collapse(options)
        secure = str(parsed_url.scheme).endswith("https")
        self._namespace = str(found.get("namespace") or parsed_url.path.strip("/") or DEFAULT_NAMESPACE)
        self._ttl = _seconds(found, "ttl", DEFAULT_TTL)
        lock_delay = _seconds(found, "lock_delay", min(self._ttl, LONGEST_LOCK_DELAY))
        self._settings: dict[str, Any] = {
            "address": f"{'https' if secure else 'http'}://{_authority(parsed_url)}",
            "http_auth": _user(parsed_url),
            "token": found.get("acl_token") or None,
            "timeout": _seconds(found, "timeout", 10.0),
        }
        with _translated():
            self._settings["session"] = SessionSpec(
                ttl=self._ttl, lock_delay=lock_delay, name=name_of(member)
            )
        if secure:
            self._settings["tls"] = _tls(found)
        self._client: Client | None = None
        self._groups: dict[bytes, Group] = {}
        self._leaders: dict[bytes, ConsulLock] = {}

    # -- starting and stopping

    @property
    def client(self) -> Client:
        """The driver's client, for what tooz does not offer. Raises ToozError before ``start``."""
        if self._client is None:
            raise ToozError("the coordinator was not started: call start() first")
        return self._client

    @_translating
    def _start(self) -> None:
        # Whoever starts wants to know soon; later calls ride out what an outage may take.
        soon = min(self._settings["timeout"], START_TIMEOUT)
        with Client(**self._settings | {"timeout": soon}) as client:
            client.status.leader()
        self._client = Client(**self._settings)

    def stop(self) -> None:
        """Give up all locks and leave all groups; without an answer for 5 s, the sessions' TTL sees to it."""
        self._joined_groups.clear()  # else tooz leaves one after the other, each with the time of a request
        super().stop()

    def _stop(self) -> None:
        client, self._client = self._client, None
        self._groups.clear()
        self._leaders.clear()
        if client is not None:
            client.close()

    @_translating
    def heartbeat(self) -> float:
        """Return after how many seconds to beat again.

        The client renews its sessions by itself; this only finds out whether Consul answers. Raises
        ToozConnectionError when it does not.
        """
        self.client.status.leader()
        return max(self._ttl / 2, 1.0)

    # -- locks

    @_translating
    def get_lock(self, name: bytes | str) -> ConsulLock:
        """Return a lock; a name with slashes makes a key with slashes, as it did in the former driver."""
        data = name.encode() if isinstance(name, str) else name
        try:
            return self._lock(data, f"{self._namespace}/locks/{data.decode()}")
        except (InvalidKey, UnicodeDecodeError):
            return self._lock(data, f"{self._namespace}/locks/{encoded(data)}")

    def _lock(self, name: bytes, key: str) -> ConsulLock:
        return ConsulLock(name, self.client, key, name_of(self._member_id))

    # -- groups

    def _submit(self, function: Callable[[], T]) -> CoordinatorResult[T]:
        return CoordinatorResult(self._executor.submit(_translating(function)))

    def _prefix(self, group_id: bytes | str) -> str:
        return f"{self._namespace}/groups/{name_of(group_id)}"

    def _check_created(self, group_id: bytes | str) -> None:
        if self.client.kv.get(self._prefix(group_id)).value is None:
            raise GroupNotCreated(group_id)

    def create_group(self, group_id: bytes | str) -> CoordinatorResult[None]:
        """Create a group. Raises GroupAlreadyExist."""

        def create() -> None:
            if not self.client.kv.put(self._prefix(group_id), b"", cas=0):
                raise GroupAlreadyExist(group_id)

        return self._submit(create)

    def get_groups(self) -> CoordinatorResult[list[bytes]]:
        """Return the groups that were created."""
        start = f"{self._namespace}/groups/"

        def get() -> list[bytes]:
            names = self.client.kv.keys(start, separator="/").value
            return [id_of(name.removeprefix(start)) for name in names if not name.endswith("/")]

        return self._submit(get)

    def delete_group(self, group_id: bytes | str) -> CoordinatorResult[None]:
        """Delete a group. Raises GroupNotCreated and GroupNotEmpty.

        A member that joins at the same moment makes it stay, or finds it not created.
        """

        def delete() -> None:
            self._check_created(group_id)
            group = Group(self.client, self._prefix(group_id))
            if not group.members():
                self.client.kv.delete(self._prefix(group_id))
                if not group.members():
                    return
                self.client.kv.put(self._prefix(group_id), b"", cas=0)
            raise GroupNotEmpty(group_id)

        return self._submit(delete)

    def _destroy_group(self, group_id: bytes | str) -> None:
        """Delete a group with its members, for tests."""
        self.client.kv.delete(self._prefix(group_id))
        self.client.kv.delete_tree(self._prefix(group_id) + "/")

    def join_group(self, group_id: bytes, capabilities: object = None) -> CoordinatorResult[None]:
        """Join a group. Raises GroupNotCreated and MemberAlreadyExist."""
        member, value = name_of(self._member_id), dumps(capabilities)

        def join() -> None:
            self._check_created(group_id)
            known = self._groups.get(group_id)
            group = Group(self.client, self._prefix(group_id), id=member, value=value, evictable=True)
            if known is not None:
                if known.joined:
                    raise MemberAlreadyExist(group_id, self._member_id)
                known.leave()  # else it joins again by itself, now or when this one has left
            try:
                group.join(timeout=0)
            except AcquireTimeout as error:
                _raise_trouble(error)
                raise MemberAlreadyExist(group_id, self._member_id) from error
            try:
                self._check_created(group_id)
            except (GroupNotCreated, ConsulCoordError):
                group.leave()
                raise
            self._groups[group_id] = group
            self._joined_groups.add(group_id)

        return self._submit(join)

    def leave_group(self, group_id: bytes) -> CoordinatorResult[None]:
        """Leave a group. Raises MemberNotJoined.

        A coordinator that has not joined, but has a member's id, makes that member leave.
        """

        def leave() -> None:
            group = self._groups.pop(group_id, None)
            self._joined_groups.discard(group_id)
            if group is not None:
                joined = group.joined
                group.leave()  # even if it is just not joined: else it joins again by itself
                if joined:
                    return
            name = f"/{name_of(self._member_id)}"
            keys = self.client.kv.keys(f"{self._prefix(group_id)}/members/").value
            found = [key for key in keys if key.endswith(name)]
            if not found:
                raise MemberNotJoined(group_id, self._member_id)
            self.client.kv.delete(found[0])

        return self._submit(leave)

    def _members(self, group_id: bytes | str) -> Mapping[bytes, Capabilities]:
        self._check_created(group_id)
        members = Group(self.client, self._prefix(group_id)).members()
        return {id_of(member.id): loads(member.value) for member in members}

    def get_members(self, group_id: bytes) -> CoordinatorResult[set[bytes]]:
        """Return the members' ids. Raises GroupNotCreated."""
        return self._submit(lambda: set(self._members(group_id)))

    def get_members_with_capabilities(self, group_id: bytes) -> CoordinatorResult[dict[bytes, Capabilities]]:
        """Return the members' ids and capabilities, read at once. Raises GroupNotCreated."""
        return self._submit(lambda: dict(self._members(group_id)))

    def get_member_capabilities(
        self, group_id: bytes | str, member_id: bytes | str
    ) -> CoordinatorResult[Capabilities]:
        """Return a member's capabilities. Raises GroupNotCreated and MemberNotJoined."""

        def get() -> Capabilities:
            members = self._members(group_id)
            member = id_of(name_of(member_id))
            if member not in members:
                raise MemberNotJoined(group_id, member_id)
            return members[member]

        return self._submit(get)

    def get_member_info(
        self, group_id: bytes | str, member_id: bytes | str
    ) -> CoordinatorResult[dict[str, Any]]:
        """Return what is known of a member: its capabilities. Raises GroupNotCreated and MemberNotJoined."""

        def get() -> dict[str, Any]:
            self._check_created(group_id)
            for member in Group(self.client, self._prefix(group_id)).members():
                if member.id == name_of(member_id):
                    known = {"session": member.session, "since_index": member.since_index}
                    return {"capabilities": loads(member.value), **known}
            raise MemberNotJoined(group_id, member_id)

        return self._submit(get)

    def update_capabilities(self, group_id: bytes, capabilities: object) -> CoordinatorResult[None]:
        """Change this member's capabilities, in place. Raises MemberNotJoined."""
        value = dumps(capabilities)

        def update() -> None:
            try:
                self._groups[group_id].update(value)
            except (KeyError, NotHeld, LockLost) as error:
                raise MemberNotJoined(group_id, self._member_id) from error

        return self._submit(update)

    # -- leaders

    def _leader_lock(self, group_id: bytes) -> ConsulLock:
        key = f"{self._namespace}/leaders/{name_of(group_id)}"
        return self._leaders.setdefault(group_id, self._lock(group_id, key))

    def get_leader(self, group_id: bytes) -> CoordinatorResult[bytes | None]:
        """Return the id of the group's leader, or None."""

        def get() -> bytes | None:
            pair = self.client.kv.get(f"{self._namespace}/leaders/{name_of(group_id)}").value
            return (
                None if pair is None or pair.session is None else id_of(pair.value.decode(errors="replace"))
            )

        return self._submit(get)

    def run_elect_coordinator(self) -> None:
        """Try to become leader of each group that is watched for that; report each success."""
        for group_id, hooks in self._hooks_elected_leader.copy().items():
            lock = self._leader_lock(group_id)
            if not lock.acquired and lock.acquire(blocking=False):
                hooks.run(LeaderElected(group_id, self._member_id))

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        """Give up the leadership of a group; False when this does not lead it."""
        lock = self._leaders.get(group_id)
        return lock is not None and lock.release()

    def run_watchers(self, timeout: float | None = None) -> list[object]:
        """Tell of who joined and left since the last call, then try to be elected where that is watched."""
        with _translated():
            result = super().run_watchers(timeout)
        self.run_elect_coordinator()
        return result


def _authority(url: Url) -> str:
    """Return where the agent is, as in a URL: an IPv6 address in brackets. Raises ToozError."""
    host = url.hostname or "127.0.0.1"
    try:
        port = url.port or DEFAULT_PORT
    except ValueError as error:
        raise ToozError(f"the port of the URL must be a number from 1 to 65535: {error}") from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _user(url: Url) -> tuple[str, str] | None:
    """Return the user and the password that are sent along, for a proxy before the agent."""
    return (unquote(url.username), unquote(url.password or "")) if url.username else None


def _seconds(options: Mapping[str, Any], name: str, default: float) -> float:
    """Return an option of the URL as seconds. Raises ToozError."""
    given = options.get(name, default)
    try:
        return float(given)
    except (TypeError, ValueError):
        raise ToozError(f"{name} must be a number of seconds, not {given!r}") from None


def _tls(options: Mapping[str, Any]) -> TLSConfig:
    verify = str(options.get("verify", "true")).lower() not in {"0", "false", "no"}
    return TLSConfig(
        verify=verify,
        ca_cert=options.get("ca_cert"),
        client_cert=options.get("client_cert"),
        client_key=options.get("client_key"),
    )
