"""Which operation of a transaction each entry of its reply belongs to.

Consul returns one flat list, in the order of the operations. Deletes and ``check-not-exists`` leave no entry,
``get-tree`` any number, and what the token may not read is left out silently. So entries are matched by verb
and key.

Rules
- An entry for a key shows that the token may read it, so each operation on that key alone has exactly one
  entry.
- The entries of one ``get-tree`` start with its prefix and rise strictly by the bytes of the key.
- A ``get-tree`` has an entry for every readable key that an operation before it left in place. If that leaves
  a choice, the entry goes to the earlier operation.
- Should no such matching exist, one is accepted in which single-key operations and trees may lack entries.

Nearly always each operation takes the next entry, and a tree all that are left: ``txn`` looks for that first.
Strings compare by code points, which is the order of their UTF-8 bytes, and so Consul's.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

from consul_coord.http.endpoints._json import ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from consul_coord.models import KVPair, TxnOp, Verb

SILENT: frozenset[Verb] = frozenset({"delete", "delete-tree", "delete-cas", "check-not-exists"})
_TREE: Verb = "get-tree"

_LEAVES_KEY: frozenset[Verb] = frozenset(
    {"set", "cas", "lock", "unlock", "get", "check-index", "check-session"}
)


def assign(ops: Sequence[TxnOp], pairs: Sequence[KVPair]) -> tuple[tuple[KVPair, ...], ...]:
    """Return the entries of each operation; raise ShapeError when they can't belong to these operations."""
    for strict in (True, False):
        ends = _Matcher(ops, pairs, strict=strict).ends()
        if ends is not None:
            return tuple(tuple(pairs[start:end]) for start, end in pairwise([0, *ends]))
    raise ShapeError(f"the reply's {len(pairs)} results do not belong to the {len(ops)} operations sent")


class _Matcher:
    """A search for where the entries of each operation end, earlier operations first, the most entries first.

    A tree's entries end where they stop rising or lose its prefix, or before a key that a later operation
    names. A key that is missing from one tree and present in a later one was made in between, and that write
    has its own entry first. So there are few places to try, however long the reply.
    """

    def __init__(self, ops: Sequence[TxnOp], pairs: Sequence[KVPair], *, strict: bool) -> None:
        self._ops = ops
        self._strict = strict
        self._names = [pair.key for pair in pairs]
        self._readable = frozenset(self._names)
        self._rises_until = _rises_until(self._names)
        self._present = [
            self._certain(at) if op.verb == _TREE else frozenset[str]() for at, op in enumerate(ops)
        ]
        self._named_later = [
            frozenset(
                later.key for later in ops[at + 1 :] if later.verb not in SILENT and later.verb != _TREE
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
        if verb in SILENT:
            yield start
        elif verb == _TREE:
            yield from self._tree_choices(op, start)
        else:
            if start < len(self._names) and self._names[start] == key:
                yield start + 1
            if not (self._strict and key in self._readable):
                yield start

    def _tree_choices(self, op: int, start: int) -> Iterator[int]:
        longest = self._tree_end(self._ops[op].key, start)
        ends = {longest, *(self._find(key, start, longest) for key in self._named_later[op])}
        for end in sorted(ends, reverse=True):
            whole = all(self._find(key, start, end) < end for key in self._present[op])
            if whole or not self._strict:
                yield end

    def _tree_end(self, prefix: str, start: int) -> int:
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
        at = bisect_left(self._names, key, start, end)
        return at if at < end and self._names[at] == key else end

    def _certain(self, op: int) -> frozenset[str]:
        """Return the readable keys below a tree that surely existed then."""
        prefix = self._ops[op].key
        keys = {each.key for each in self._ops if each.key in self._readable and each.key.startswith(prefix)}
        return frozenset(key for key in keys if self._existed(op, key))

    def _existed(self, op: int, key: str) -> bool:
        """Return whether the last operation on the key before this one left it in place."""
        last = next((each for each in reversed(self._ops[:op]) if _concerns(each, key)), None)
        return last is not None and last.verb in _LEAVES_KEY


def _concerns(op: TxnOp, key: str) -> bool:
    return key.startswith(op.key) if op.verb == "delete-tree" else op.verb != _TREE and op.key == key


def _rises_until(names: Sequence[str]) -> list[int]:
    """Return, for each place, where the names that rise strictly from there on end."""
    ends = list(range(1, len(names) + 1))
    for at in range(len(names) - 2, -1, -1):
        if names[at] < names[at + 1]:
            ends[at] = ends[at + 1]
    return ends
