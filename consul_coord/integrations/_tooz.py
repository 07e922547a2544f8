"""The part of tooz that the driver uses: the real names at run time, types for checkers without tooz."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from consul_coord.extras import needs

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Protocol, TypeAlias

    T = TypeVar("T")
    Capabilities: TypeAlias = Any
    """A member's capabilities: any value that msgpack can write."""

    class Url(Protocol):
        scheme: str
        path: str
        hostname: str | None
        port: int | None
        username: str | None
        password: str | None

    class ToozError(Exception): ...

    class NotImplementedByDriver(NotImplementedError): ...

    class ToozConnectionError(ToozError): ...

    class OperationTimedOut(ToozError): ...

    class GroupNotCreated(ToozError):
        def __init__(self, group_id: str | bytes) -> None: ...

    class GroupAlreadyExist(GroupNotCreated): ...

    class GroupNotEmpty(GroupNotCreated): ...

    class MemberAlreadyExist(ToozError):
        def __init__(self, group_id: str | bytes, member_id: str | bytes) -> None: ...

    class MemberNotJoined(MemberAlreadyExist): ...

    class LeaderElected:
        def __init__(self, group_id: bytes, member_id: bytes) -> None: ...

    class Characteristics(enum.Enum):
        DISTRIBUTED_ACROSS_THREADS = enum.auto()
        DISTRIBUTED_ACROSS_PROCESSES = enum.auto()
        DISTRIBUTED_ACROSS_HOSTS = enum.auto()
        NON_TIMEOUT_BASED = enum.auto()
        LINEARIZABLE = enum.auto()
        SERIALIZABLE = enum.auto()

    class CoordinatorResult(Generic[T]):
        def __init__(self, fut: Future[T]) -> None: ...

    class Hooks:
        def run(self, event: object) -> list[object]: ...

    class Executor:
        def submit(self, function: Callable[[], T]) -> Future[T]: ...

    class Driver:
        CHARACTERISTICS: tuple[Characteristics, ...]
        _member_id: bytes
        _executor: Executor
        _joined_groups: set[bytes]
        _hooks_elected_leader: dict[bytes, Hooks]

        def __init__(self, member_id: bytes, parsed_url: Url, options: dict[str, Any]) -> None: ...

        def run_watchers(self, timeout: float | None = None) -> list[object]: ...

        def stop(self) -> None: ...

    class ToozLock:
        name: bytes

        def __init__(self, name: bytes) -> None: ...

    def collapse(options: dict[str, Any]) -> dict[str, Any]: ...

    def dumps(data: object) -> bytes: ...

    def loads(blob: bytes) -> Capabilities: ...

else:
    with needs("tooz"):
        from tooz import NotImplemented as NotImplementedByDriver
        from tooz import ToozError, coordination
        from tooz.coordination import (
            Characteristics,
            CoordinatorResult,
            GroupAlreadyExist,
            GroupNotCreated,
            GroupNotEmpty,
            LeaderElected,
            MemberAlreadyExist,
            MemberNotJoined,
            OperationTimedOut,
            ToozConnectionError,
        )
        from tooz.locking import Lock as ToozLock
        from tooz.utils import collapse, dumps, loads

        class Driver(
            coordination.CoordinationDriverCachedRunWatchers, coordination.CoordinationDriverWithExecutor
        ):
            """The driver's base."""


__all__ = [
    "Characteristics",
    "CoordinatorResult",
    "Driver",
    "GroupAlreadyExist",
    "GroupNotCreated",
    "GroupNotEmpty",
    "LeaderElected",
    "MemberAlreadyExist",
    "MemberNotJoined",
    "NotImplementedByDriver",
    "OperationTimedOut",
    "ToozConnectionError",
    "ToozError",
    "ToozLock",
    "collapse",
    "dumps",
    "loads",
]
