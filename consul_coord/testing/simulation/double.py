"""A fork: a second process with a copy of the first one's client, which must find that none of it is its own.

Rules
- The copy has the memory that a fork copies: sessions with their leases, and holds of keys. It has no
  threads: nothing of the copy runs, and it may send no request.
- The copy is notified as the clients do it, in the child, before anything else. From then on it relies on no
  inherited hold and has nothing to clean up, and the parent's holds go on undisturbed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from consul_coord.models import KVPair, LossReason
from consul_coord.recipes.client import ClientState
from consul_coord.recipes.lock.keys import Keys, LockKind
from consul_coord.recipes.session.keeping import KeptSession

if TYPE_CHECKING:
    from consul_coord.recipes.hold.grant import Grant
    from consul_coord.testing.simulation.judge import Judge
    from consul_coord.testing.simulation.process import Process


def fork(parent: Process, child: Process, judge: Judge) -> None:
    """Give the child what a fork copies, tell its client so, and judge what it makes of that."""
    child.closed = True  # no thread of the parent's runs in the child
    inherited = ClientState(child.host, spec=parent.core.sessions.spec, timeout=parent.core.timeout)
    holds = [
        _copied(hold, twin, inherited)
        for kept, twin in [(kept, _twin(kept, inherited)) for kept in parent.core.sessions]
        for hold in parent.core.holds.all()
        if hold.kept is kept and isinstance(hold.kind, LockKind)
    ]
    inherited.forked(child.host)
    child.closed = False
    now = child.host.now()
    for hold in holds:
        judge.see("double refused")
        if hold.is_held(now) or hold.loss(now) is not LossReason.FORKED:
            judge.convict("fork", f"{child.name} relies on {parent.name}'s hold of {hold.key}")
    if inherited.reaper.pending or list(inherited.sessions):
        judge.convict("fork", f"{child.name} would clean up what is {parent.name}'s")


def _twin(kept: KeptSession, inherited: ClientState) -> KeptSession:
    twin = KeptSession(kept.id, kept.spec, outside=kept.outside)
    twin.lease = copy.deepcopy(kept.lease)
    inherited.sessions.adopt(twin)
    return twin


def _copied(hold: Grant, twin: KeptSession, inherited: ClientState) -> Grant:
    pair = KVPair(
        key=hold.key,
        value=hold.value,
        flags=hold.flags,
        session=hold.session,
        create_index=hold.fence,
        modify_index=hold.fence,
        lock_index=hold.lock_index,
    )
    kind = LockKind(Keys(inherited, (hold.key,), hold.flags, None))
    inherited.attend()
    return inherited.holds.grant(pair, kept=twin, value=hold.value, flags=hold.flags, kind=kind).grant
