"""The replicated part of the state: the tables, the Raft index and the index of each table.

Rules
- Each applied command consumes one Raft index, also when it changes nothing or fails.
- A table's index is the Raft index of the last command that really changed it; a query's index derives from
  these.
- A command that raises leaves no trace but the consumed index.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consul_coord.server.dialects import CONSUL_1_8
from consul_coord.server.tables import SortedTable, Table

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from consul_coord.server.dialects import Dialect
    from consul_coord.server.records import (
        CheckRecord,
        Entry,
        NodeRecord,
        PolicyRecord,
        QueryRecord,
        ServiceRecord,
        SessionRecord,
        TokenRecord,
    )
    from consul_coord.server.tables import Change, Mark

KV = "kvs"
TOMBSTONES = "tombstones"
SESSIONS = "sessions"
NODES = "nodes"
SERVICES = "services"
CHECKS = "checks"
QUERIES = "prepared-queries"
POLICIES = "acl-policies"
TOKENS = "acl-tokens"
EXTINCT = "service_last_extinction"
INDEX = "index"
"""The first part of the mark of an index that has moved."""


def fold(text: str) -> str:
    """Return the form under which names are looked up without regard to case."""
    return text.lower()


def pair(node: str, name: str) -> str:
    """Return the table key of a thing that belongs to a node."""
    return f"{fold(node)}\0{name}"


class KvTable(SortedTable["Entry"]):
    """The keys, with an index of which session holds which."""

    def __init__(self, journal: list[Change]) -> None:
        super().__init__(journal, lambda key, _: ((KV, key),))
        self._held: defaultdict[str, set[str]] = defaultdict(set)

    def apply(self, key: str, old: Entry | None, new: Entry | None) -> None:
        """Make the change, and note who holds the key now."""
        super().apply(key, old, new)
        before = old.session if old is not None else ""
        after = new.session if new is not None else ""
        if before != after:
            if before:
                self._let_go(fold(before), key)
            if after:
                self._held[fold(after)].add(key)

    def held_by(self, session: str) -> list[str]:
        """Return the keys that ``session`` holds, in order."""
        return sorted(self._held.get(fold(session), ()))

    def _let_go(self, session: str, key: str) -> None:
        keys = self._held[session]
        keys.discard(key)
        if not keys:
            del self._held[session]


class TokenTable(Table["TokenRecord"]):
    """The ACL tokens by accessor, with an index of their secrets."""

    def __init__(self, journal: list[Change]) -> None:
        super().__init__(journal, lambda _key, _row: ((TOKENS,),))
        self.by_secret: dict[str, TokenRecord] = {}

    def apply(self, key: str, old: TokenRecord | None, new: TokenRecord | None) -> None:
        """Make the change, and note whose secret it is now."""
        super().apply(key, old, new)
        if old is not None:
            self.by_secret.pop(old.secret, None)
        if new is not None:
            self.by_secret[new.secret] = new


def _session_marks(key: str, session: SessionRecord) -> Iterable[Mark]:
    return ((SESSIONS,), (SESSIONS, key), (SESSIONS, "node", fold(session.node)))


def _node_marks(key: str, _: NodeRecord) -> Iterable[Mark]:
    return ((NODES,), (NODES, key))


def _service_marks(_: str, service: ServiceRecord) -> Iterable[Mark]:
    return ((SERVICES,), (SERVICES, "node", fold(service.node)), (SERVICES, "name", service.service))


def _check_marks(_: str, check: CheckRecord) -> Iterable[Mark]:
    return ((CHECKS,), (CHECKS, "node", fold(check.node)), (CHECKS, "service", check.service_name))


class Store:
    """Everything that Raft replicates and a snapshot holds.

    ``dialect`` says how it words what it refuses, and what it knows.
    """

    def __init__(self, dialect: Dialect = CONSUL_1_8) -> None:
        self.dialect = dialect
        journal: list[Change] = []
        self._journal = journal
        self.raft_index = 0
        self.indexes: dict[str, int] = {}
        self.kv = KvTable(journal)
        self.tombstones: SortedTable[int] = SortedTable(journal, lambda _key, _row: ())
        self.sessions: Table[SessionRecord] = Table(journal, _session_marks)
        self.nodes: Table[NodeRecord] = Table(journal, _node_marks)
        self.services: Table[ServiceRecord] = Table(journal, _service_marks)
        self.checks: Table[CheckRecord] = Table(journal, _check_marks)
        self.queries: Table[QueryRecord] = Table(journal, lambda _key, _row: ((QUERIES,),))
        self.policies: Table[PolicyRecord] = Table(journal, lambda _key, _row: ((POLICIES,),))
        self.tokens = TokenTable(journal)
        self._news: dict[Mark, None] = {}
        self._moved: dict[Mark, None] = {}

    def index_of(self, *tables: str) -> int:
        """Return the highest index of the named tables; 0 when none was ever written."""
        return max(self.indexes.get(table, 0) for table in tables)

    def changed(self, table: str, index: int) -> None:
        """Note that ``table`` was changed by the command at ``index``."""
        self.indexes[table] = index
        self._moved[INDEX, table] = None

    def forgotten(self, name: str) -> None:
        """Forget the index of something that there is no more."""
        self.indexes.pop(name, None)
        self._moved[INDEX, name] = None

    @contextmanager
    def command(self) -> Generator[int, None, None]:
        """Apply one Raft command: give its index; undo it on an exception, else publish the news."""
        self.raft_index += 1
        indexes = self.indexes.copy()
        self._journal.clear()
        self._moved.clear()
        try:
            yield self.raft_index
        except BaseException:
            for table, key, old, new in reversed(self._journal):
                table.apply(key, new, old)
            self.indexes = indexes
            self._journal.clear()
            raise
        for table, key, old, new in self._journal:
            for row in (old, new):
                if row is not None:
                    self._news.update(dict.fromkeys(table.marks(key, row)))
        self._news.update(self._moved)
        self._journal.clear()

    def take_news(self) -> tuple[Mark, ...]:
        """Return the marks published since the last call, in order, each once."""
        news = tuple(self._news)
        self._news.clear()
        return news

    def copy(self) -> Store:
        """Return an independent copy: the rows are shared, being immutable."""
        twin = Store(self.dialect)
        twin.raft_index = self.raft_index
        twin.indexes = self.indexes.copy()
        for name in TABLES:
            source: Table[object] = getattr(self, name)
            target: Table[object] = getattr(twin, name)
            for key, row in source.rows.items():
                target.apply(key, None, row)
        return twin


TABLES = ("kv", "tombstones", "sessions", "nodes", "services", "checks", "queries", "policies", "tokens")
