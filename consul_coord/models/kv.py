"""Key-value entries and transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from consul_coord.models._validate import UINT64_MAX, as_bytes, choice, text, uint64
from consul_coord.value import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_FLAGS = 0x2DDCCBC058A50C18
"""The flags by which Consul's own clients recognise a lock's key."""
SEMAPHORE_FLAGS = 0xE0F69A2BAA414DE0
"""The flags by which Consul's own clients recognise a semaphore's keys."""

Verb: TypeAlias = Literal[
    "set",
    "cas",
    "lock",
    "unlock",
    "get",
    "get-tree",
    "check-index",
    "check-session",
    "check-not-exists",
    "delete",
    "delete-tree",
    "delete-cas",
]

FailureKind: TypeAlias = Literal[
    "held",
    "lock_delay",
    "stale_index",
    "not_holder",
    "missing",
    "exists",
    "invalid_session",
    "denied",
    "other",
]
"""Why an operation refused.

- ``held``: another session holds the key.
- ``lock_delay``: the lock-delay is in force.
- ``stale_index``: the key has another index than expected.
- ``not_holder``: the session does not hold the key.
- ``missing``, ``exists``: the key is missing, or exists.
- ``invalid_session``: there is no such session.
- ``denied``: the token lacks a permission.
- ``other``: anything else.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KVPair(Value):
    """One key as Consul keeps it."""

    key: str
    value: bytes = b""
    flags: int = 0
    session: str | None = None
    """The session that holds the key, or None."""
    create_index: int = 0
    modify_index: int = 0
    """The index of the last change: grows with every change of the key, also across its deletion."""
    lock_index: int = 0
    """How often the key was acquired; a plain write sets it back to 0, so it is no fence."""


_VERBS: Final = frozenset[object](get_args(Verb))
_INDEXED: Final = frozenset({"cas", "check-index", "delete-cas"})
_HELD: Final = frozenset({"lock", "unlock", "check-session"})
"""The verbs that need an index, and those that need a session."""


def _as_bytes(value: bytes | str) -> bytes:
    return value if type(value) is bytes else as_bytes(value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TxnOp(Value):
    """One operation of a transaction; made by the class methods, one for each verb.

    Raises InvalidArgument for values of a wrong kind, and for an index or a session that a verb needs.
    """

    verb: Verb
    key: str
    value: bytes | None = None
    flags: int = 0
    index: int | None = None
    session: str | None = None

    def __post_init__(self) -> None:
        verb: object = self.verb
        key, value, flags, index, session = self.key, self.value, self.flags, self.index, self.session
        if (
            type(verb) is str
            and verb in _VERBS
            and type(key) is str
            and key.isascii()
            and (value is None or type(value) is bytes)
            and type(flags) is int
            and 0 <= flags <= UINT64_MAX
            and (index is None if verb not in _INDEXED else (type(index) is int and 0 <= index <= UINT64_MAX))
            and (session is None if verb not in _HELD else (type(session) is str and session.isascii()))
        ):
            return  # as nearly always; what is left is looked at one by one, for its error
        choice("verb", verb, get_args(Verb))
        text("key", key)
        uint64("flags", flags)
        if value is not None:
            object.__setattr__(self, "value", as_bytes(value))
        if index is not None or verb in _INDEXED:
            uint64("index", index)
        if session is not None or verb in _HELD:
            text("session", session)

    @classmethod
    def set(cls, key: str, value: bytes | str, *, flags: int = 0) -> TxnOp:
        """Write the key, whoever holds it. A holder stays holder; the lock index goes back to 0."""
        return cls("set", key, value=_as_bytes(value), flags=flags)

    @classmethod
    def cas(cls, key: str, value: bytes | str, index: int, *, flags: int = 0) -> TxnOp:
        """Write the key if its ModifyIndex is ``index``; 0 means absent. Fails with ``stale_index``."""
        return cls("cas", key, value=_as_bytes(value), flags=flags, index=index)

    @classmethod
    def lock(cls, key: str, session: str, *, value: bytes | str = b"", flags: int = 0) -> TxnOp:
        """Acquire and write the key. Fails with ``held``, ``lock_delay`` or ``invalid_session``."""
        return cls("lock", key, value=_as_bytes(value), flags=flags, session=session)

    @classmethod
    def unlock(cls, key: str, session: str, *, value: bytes | str = b"", flags: int = 0) -> TxnOp:
        """Release the key; value and flags are overwritten with these. Fails with ``not_holder``."""
        return cls("unlock", key, value=_as_bytes(value), flags=flags, session=session)

    @classmethod
    def get(cls, key: str) -> TxnOp:
        """Read the key. Fails with ``missing``; gives nothing without permission to read it."""
        return cls("get", key)

    @classmethod
    def get_tree(cls, prefix: str) -> TxnOp:
        """Read every key that starts with the prefix, as it stands after the operations before this one."""
        return cls("get-tree", prefix)

    @classmethod
    def check_index(cls, key: str, index: int) -> TxnOp:
        """Require that the key's ModifyIndex is ``index``. Fails with ``stale_index`` or ``missing``."""
        return cls("check-index", key, index=index)

    @classmethod
    def check_session(cls, key: str, session: str) -> TxnOp:
        """Require that this session, or none (``""``), holds it. Fails with ``not_holder`` or ``missing``."""
        return cls("check-session", key, session=session)

    @classmethod
    def check_not_exists(cls, key: str) -> TxnOp:
        """Require that the key is absent. Fails with ``exists``."""
        return cls("check-not-exists", key)

    @classmethod
    def delete(cls, key: str) -> TxnOp:
        """Delete the key, whoever holds it; an absent one too."""
        return cls("delete", key)

    @classmethod
    def delete_tree(cls, prefix: str) -> TxnOp:
        """Delete every key that starts with the prefix."""
        return cls("delete-tree", prefix)

    @classmethod
    def delete_cas(cls, key: str, index: int) -> TxnOp:
        """Delete the key if its ModifyIndex is ``index``, or if it is absent. Fails with ``stale_index``."""
        return cls("delete-cas", key, index=index)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TxnResult(Value):
    """The result of a transaction: ``result[i]`` holds the entries of the i-th operation.

    Entries of writes and checks carry no value (Consul leaves it out); deletes and ``check_not_exists`` have
    no entry, and neither has any operation on a key that the token may not read.
    """

    entries: tuple[tuple[KVPair, ...], ...] = ()

    @property
    def index(self) -> int:
        """The highest ModifyIndex among the entries, or 0 when there are none.

        All writes of one transaction share one index, so this is the transaction's own if it wrote a key that
        the reply shows. A transaction that only read, checked or deleted has no index of its own in Consul's
        reply.
        """
        return max((pair.modify_index for pairs in self.entries for pair in pairs), default=0)

    def __getitem__(self, op_index: int) -> tuple[KVPair, ...]:
        return self.entries[op_index]

    def __iter__(self) -> Iterator[tuple[KVPair, ...]]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TxnFailure(Value):
    """One operation that made a transaction fail."""

    op_index: int
    op: TxnOp | None
    """The operation, or None when Consul names one that was not sent."""
    kind: FailureKind
    message: str
    """Consul's own words."""
