"""The transactions that carry a lock's value: pure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from consul_coord.models import TxnOp
from consul_coord.recipes.cleanup.unlock import Locked
from consul_coord.recipes.contend.limits import ANY_SESSION, LONGEST
from consul_coord.recipes.contend.queue import contender_key

if TYPE_CHECKING:
    from consul_coord.recipes.contend.limits import Carrier
    from consul_coord.recipes.lock.plan import LockPlan


def locking(plan: LockPlan, key: str, session: str, value: bytes) -> TxnOp:
    """Return the operation that locks a key."""
    return TxnOp.lock(key, session, value=value, flags=plan.flags)


def taking(plan: LockPlan, session: str, value: bytes, *, index: int) -> tuple[TxnOp, ...]:
    """Return the operations that take the lock for a contender, which is at an index, and remove that."""
    contender = contender_key(plan.key, session)
    return (
        TxnOp.check_index(contender, index),
        locking(plan, plan.key, session, value),
        TxnOp.delete(contender),
    )


def reading(plan: LockPlan) -> tuple[TxnOp, ...]:
    """Return what a transaction that grants the lock reads besides."""
    return (TxnOp.get_tree(plan.reads),) if plan.reads else ()


def carriers(plan: LockPlan) -> tuple[Carrier, ...]:
    """Return the longest transactions by which the lock is got and given back."""
    return (partial(_longest_take, plan), partial(_longest_unlock, plan))


def _longest_take(plan: LockPlan, value: bytes) -> tuple[TxnOp, ...]:
    if len(plan.keys) > 1:
        return tuple(locking(plan, key, ANY_SESSION, value) for key in plan.keys)
    return (*taking(plan, ANY_SESSION, value, index=LONGEST), *reading(plan))


def _longest_unlock(plan: LockPlan, value: bytes) -> tuple[TxnOp, ...]:
    all_locked = (Locked(key, LONGEST, value, remove=plan.remove) for key in plan.keys)
    return tuple(op for locked in all_locked for op in locked.unlocking(ANY_SESSION, plan.flags))
