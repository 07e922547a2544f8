"""Which operation of a transaction each entry of its reply belongs to.

Consul returns one flat list, in the order of the operations. Deletes and ``check-not-exists`` leave no entry,
``get-tree`` any number, and what the token may not read is left out silently. So entries are matched by verb
and key.

Rules
- An entry for a key shows that the token may read it, so every single-key operation on that key has exactly
  one entry.
- The entries of one ``get-tree`` start with its prefix and rise strictly by the bytes of the key.
- Whether a key existed at the time of a ``get-tree`` often follows from the other operations; where it does,
  the tree has to agree. What is left open goes to the earlier operation.
- Should no such matching exist, one is accepted in which single-key operations and trees may lack entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from consul_coord.http.endpoints._json import ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consul_coord.models import KVPair, TxnOp, Verb

_NO_ENTRY: frozenset[Verb] = frozenset({"delete", "delete-tree", "delete-cas", "check-not-exists"})
_TREE: Verb = "get-tree"

# Whether the operation's key exists after it succeeded, and what its success says of the time before; None:
# either.
_AFTER: dict[Verb, bool] = {
    "set": True,
    "cas": True,
    "lock": True,
    "unlock": True,
    "get": True,
    "check-index": True,
    "check-session": True,
    "check-not-exists": False,
    "delete": False,
    "delete-cas": False,
}
_BEFORE: dict[Verb, bool | None] = {
    "set": None,
    "cas": None,
    "lock": None,
    "unlock": True,
    "get": True,
    "check-index": True,
    "check-session": True,
    "check-not-exists": False,
    "delete": None,
    "delete-cas": None,
}


def assign(ops: Sequence[TxnOp], pairs: Sequence[KVPair]) -> tuple[tuple[KVPair, ...], ...]:
    """Return the entries of each operation; raise ShapeError when they can't belong to these operations."""
    for strict in (True, False):
        counts = _Matcher(ops, pairs, strict=strict).counts()
        if counts is not None:
            return _split(pairs, counts)
    message = f"the reply's {len(pairs)} results do not belong to the {len(ops)} operations sent"
    raise ShapeError(message)


def _split(pairs: Sequence[KVPair], counts: Sequence[int]) -> tuple[tuple[KVPair, ...], ...]:
    entries: list[tuple[KVPair, ...]] = []
    start = 0
    for count in counts:
        entries.append(tuple(pairs[start : start + count]))
        start += count
    return tuple(entries)


def _sort_key(pair: KVPair) -> bytes:
    return pair.key.encode(errors="surrogatepass")


@dataclass(slots=True)
class _Matcher:
    """A search for how many entries each operation has, earlier operations first, the most first."""

    ops: Sequence[TxnOp]
    pairs: Sequence[KVPair]
    strict: bool
    _dead_ends: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    _readable: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._readable = frozenset(pair.key for pair in self.pairs)

    def counts(self, op: int = 0, start: int = 0) -> list[int] | None:
        """Return the counts from one operation on, whose entries begin at ``start``."""
        if op == len(self.ops):
            return [] if start == len(self.pairs) else None
        if (op, start) in self._dead_ends:
            return None
        for count in self._choices(op, start):
            rest = self.counts(op + 1, start + count)
            if rest is not None:
                return [count, *rest]
        self._dead_ends.add((op, start))
        return None

    def _choices(self, op: int, start: int) -> Iterator[int]:
        verb = self.ops[op].verb
        if verb in _NO_ENTRY:
            yield 0
        elif verb == _TREE:
            yield from self._tree_choices(op, start)
        else:
            key = self.ops[op].key
            here = start < len(self.pairs) and self.pairs[start].key == key
            if here:
                yield 1
            if not (self.strict and key in self._readable):
                yield 0

    def _tree_choices(self, op: int, start: int) -> Iterator[int]:
        longest = self._longest_run(op, start)
        if not self.strict:
            yield from range(longest, -1, -1)
            return
        known = self._known(op)
        present = {key for key, exists in known.items() if exists}
        run = [pair.key for pair in self.pairs[start : start + longest]]
        absent_at = next((at for at, key in enumerate(run) if known.get(key) is False), longest)
        at_least = max((at + 1 for at, key in enumerate(run) if key in present), default=0)
        if present <= set(run):
            yield from range(absent_at, at_least - 1, -1)

    def _longest_run(self, op: int, start: int) -> int:
        end = start
        while end < len(self.pairs) and self.pairs[end].key.startswith(self.ops[op].key):
            if end > start and _sort_key(self.pairs[end]) <= _sort_key(self.pairs[end - 1]):
                break
            end += 1
        return end - start

    def _known(self, op: int) -> dict[str, bool | None]:
        """Return, for each readable key below a tree, whether it must exist at that moment."""
        prefix = self.ops[op].key
        keys = {each.key for each in self.ops if each.key in self._readable and each.key.startswith(prefix)}
        return {key: self._existence(op, key) for key in keys}

    def _existence(self, op: int, key: str) -> bool | None:
        for each in reversed(self.ops[:op]):
            if each.verb == "delete-tree" and key.startswith(each.key):
                return False
            if each.key == key and each.verb in _AFTER:
                return _AFTER[each.verb]
        for each in self.ops[op + 1 :]:
            if each.verb == "delete-tree" and key.startswith(each.key):
                return None
            if each.key == key and each.verb in _BEFORE:
                return (each.index != 0) if each.verb == "cas" else _BEFORE[each.verb]
        return None
