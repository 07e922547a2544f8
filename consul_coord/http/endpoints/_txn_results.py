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

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

from consul_coord.http.endpoints._json import ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consul_coord.models import KVPair, TxnOp, Verb

_SILENT: frozenset[Verb] = frozenset({"delete", "delete-tree", "delete-cas", "check-not-exists"})
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
        ends = _Matcher(ops, pairs, strict=strict).ends()
        if ends is not None:
            return tuple(tuple(pairs[start:end]) for start, end in pairwise([0, *ends]))
    message = f"the reply's {len(pairs)} results do not belong to the {len(ops)} operations sent"
    raise ShapeError(message)


class _Matcher:
    """A search for where the entries of each operation end, earlier operations first, the most entries first.

    A tree's entries end where they stop rising or lose its prefix, or before a key that a later operation
    names: a key that is missing from one tree and present in a later one was made in between, and that write
    has its own entry first. So there are few places to try, however long the reply.
    """

    def __init__(self, ops: Sequence[TxnOp], pairs: Sequence[KVPair], *, strict: bool) -> None:
        self._ops = ops
        self._strict = strict
        self._names = [_in_order(pair.key) for pair in pairs]
        self._readable = frozenset(pair.key for pair in pairs)
        self._rises_until = _rises_until(self._names)
        self._known = [self._existences(at) if op.verb == _TREE else {} for at, op in enumerate(ops)]
        self._named_later = [
            frozenset(
                later.key for later in ops[at + 1 :] if later.verb not in _SILENT and later.verb != _TREE
            )
            for at in range(len(ops))
        ]
        self._dead_ends: set[tuple[int, int]] = set()

    def ends(self, op: int = 0, start: int = 0) -> list[int] | None:
        """Return where the entries of each operation end, from one on whose entries begin at ``start``."""
        if op == len(self._ops):
            return [] if start == len(self._names) else None
        if (op, start) in self._dead_ends:
            return None
        for end in self._choices(op, start):
            rest = self.ends(op + 1, end)
            if rest is not None:
                return [end, *rest]
        self._dead_ends.add((op, start))
        return None

    def _choices(self, op: int, start: int) -> Iterator[int]:
        verb, key = self._ops[op].verb, self._ops[op].key
        if verb in _SILENT:
            yield start
        elif verb == _TREE:
            yield from self._tree_choices(op, start)
        else:
            if start < len(self._names) and self._names[start] == _in_order(key):
                yield start + 1
            if not (self._strict and key in self._readable):
                yield start

    def _tree_choices(self, op: int, start: int) -> Iterator[int]:
        longest = self._tree_end(_in_order(self._ops[op].key), start)
        ends = {longest, *(self._find(key, start, longest) for key in self._named_later[op])}
        if not self._strict:
            ends.add(start)
        for end in sorted(ends, reverse=True):
            if not self._strict or self._agrees(op, start, end):
                yield end

    def _tree_end(self, prefix: bytes, start: int) -> int:
        if start == len(self._names):
            return start
        # Sorted, the names with one prefix stand together.
        return bisect_left(
            self._names,
            True,  # noqa: FBT003
            start,
            self._rises_until[start],
            key=lambda name: not name.startswith(prefix),
        )

    def _find(self, key: str, start: int, end: int) -> int:
        """Return where a key stands within a rising part of the names; its end when it does not."""
        name = _in_order(key)
        at = bisect_left(self._names, name, start, end)
        return at if at < end and self._names[at] == name else end

    def _agrees(self, op: int, start: int, end: int) -> bool:
        return all((self._find(key, start, end) < end) is exists for key, exists in self._known[op].items())

    def _existences(self, op: int) -> dict[str, bool]:
        """Return whether the readable keys below a tree existed then, for those where that is certain."""
        prefix = self._ops[op].key
        keys = {each.key for each in self._ops if each.key in self._readable and each.key.startswith(prefix)}
        certain = ((key, self._existence(op, key)) for key in keys)
        return {key: exists for key, exists in certain if exists is not None}

    def _existence(self, op: int, key: str) -> bool | None:
        for each in reversed(self._ops[:op]):
            if each.verb == "delete-tree" and key.startswith(each.key):
                return False
            if each.key == key and each.verb in _AFTER:
                return _AFTER[each.verb]
        for each in self._ops[op + 1 :]:
            if each.verb == "delete-tree" and key.startswith(each.key):
                return None
            if each.key == key and each.verb in _BEFORE:
                return (each.index != 0) if each.verb == "cas" else _BEFORE[each.verb]
        return None


def _in_order(key: str) -> bytes:
    """Return a key as Consul sorts it."""
    return key.encode(errors="surrogatepass")


def _rises_until(names: Sequence[bytes]) -> list[int]:
    """Return, for each place, where the names that rise strictly from there on end."""
    ends = list(range(1, len(names) + 1))
    for at in range(len(names) - 2, -1, -1):
        if names[at] < names[at + 1]:
            ends[at] = ends[at + 1]
    return ends
