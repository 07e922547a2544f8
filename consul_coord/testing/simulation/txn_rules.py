"""The meaning of a transaction: its results, or the reasons for which it fails, in a given state.

Rules
- Each operation sees what those before it have done. One that fails does nothing, and the others go on: so a
  transaction fails for each reason that there is, and for no other.
- The index of what a transaction writes is not known before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from consul_coord.errors import TxnFailed
from consul_coord.server.records import Entry
from consul_coord.testing.simulation.call_rules import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consul_coord.models import KVPair, TxnOp
    from consul_coord.testing.simulation.past import Moment

_UNKNOWN = -1
"""The index of what the transaction itself has written."""


def is_result(ops: Sequence[TxnOp], found: Any, moments: Sequence[Moment]) -> bool:  # noqa: ANN401 - or its error
    """Return whether operations gave this result, or failed for these reasons, at one of the moments."""
    if isinstance(found, TxnFailed):
        said = {(failure.op_index, str(failure.kind)) for failure in found.failures}
        right = all(failure.op == ops[failure.op_index] for failure in found.failures)
        return right and any(_applied(ops, moment)[1] == said for moment in moments)
    return len(found) == len(ops) and any(
        not failures and all(map(_looks_like, found, results))
        for results, failures in (_applied(ops, moment) for moment in moments)
    )


def _looks_like(pairs: Sequence[KVPair], entries: Sequence[Entry]) -> bool:
    if len(pairs) != len(entries):
        return False
    return all(
        pair.key == entry.key if entry.modify_index == _UNKNOWN else shown(pair) == shown(entry)
        for pair, entry in zip(pairs, entries, strict=True)
    )


def _applied(ops: Sequence[TxnOp], moment: Moment) -> tuple[list[list[Entry]], set[tuple[int, str]]]:
    """Return what each operation gives, and which fail."""
    keys, failures, results = dict(moment.keys), set[tuple[int, str]](), list[list[Entry]]()
    for at, op in enumerate(ops):
        if problem := _problem(op, keys.get(op.key)):
            failures.add((at, problem))
            results.append([])
        else:
            results.append(_apply(op, keys))
    return results, failures


def _problem(op: TxnOp, entry: Entry | None) -> str:
    """Return why an operation fails; empty if it does not."""
    index = 0 if entry is None else entry.modify_index
    match op.verb:
        case "check-not-exists":
            return "" if entry is None else "exists"
        case "get" | "check-index" | "check-session" if entry is None:
            return "missing"
        case "check-session" if entry is not None and entry.session != op.session:
            return "not_holder"
        case "check-index" | "cas" if op.index != index:
            return "stale_index"
        case "delete-cas" if entry is not None and op.index != index:
            return "stale_index"
        case _:
            return ""


def _apply(op: TxnOp, keys: dict[str, Entry]) -> list[Entry]:
    """Do what an operation does, and return what it gives."""
    entry, under = keys.get(op.key), [one for name, one in sorted(keys.items()) if name.startswith(op.key)]
    match op.verb:
        case "get-tree":
            return under
        case "get" | "check-index" | "check-session" if entry is not None:
            return [entry if op.verb == "get" else replace(entry, modify_index=_UNKNOWN)]
        case "set" | "cas":
            keys[op.key] = Entry(op.key, op.value or b"", op.flags, modify_index=_UNKNOWN)
            return [keys[op.key]]
        case "delete" | "delete-cas":
            keys.pop(op.key, None)
        case "delete-tree":
            for one in under:
                del keys[one.key]
        case _:
            pass
    return []
