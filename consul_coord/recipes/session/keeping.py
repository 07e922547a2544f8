"""Sessions: made on first need, renewed until they end, replaced by a new one for the next need after a loss.

Rules
- A session's end is told once, to all its holds, with one reason. 404 on renew is that end; anything else is
  tried again until the lease is over. Nothing that a renewal raises ends the renewing.
- One 404 is not enough: a leader that was just elected, or restarted, gives it for living sessions while it
  still applies its log (seen on 1.8.7, for some milliseconds). It is asked again after a consistent read,
  which a leader answers only once it has caught up.
- Each renewal has its own deadline, a part of the lease, so that one request that hangs leaves time for
  another.
- The lease is what is believed in, never the server's 2 x TTL. What the server echoes of TTL and lock-delay
  is adopted; until the first echo, a lock-delay that was left to the server is taken for its default.
- A horizon so short that renewals follow each other within a fraction of a second is warned of once.
- A session that ended here is destroyed on the server as soon as that can be reached, *without* releasing its
  keys first: their lock-delay then covers what the former holder may still have under way.
- A create that got no answer may have made a session, or will. It is looked for by its name, which no other
  session has, and destroyed.
- An outside session (given by its id) is renewed while in use, and never destroyed.

Source: https://developer.hashicorp.com/consul/docs/dynamic-app-config/sessions
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING

from consul_coord.errors import (
    ConsulCoordError,
    NodeNotRegistered,
    PermissionDenied,
    RequestTimeout,
    SessionNotFound,
    UnsafeSession,
)
from consul_coord.events import Failed, Jeopardy, Renewed, SessionDiffers, ShortHorizon
from consul_coord.http.backoff import delay
from consul_coord.http.endpoints import session as endpoint
from consul_coord.http.failures import outcome_unknown
from consul_coord.http.retry import send_once
from consul_coord.io import Signal
from consul_coord.models import LossReason, ReadOptions, SessionSpec
from consul_coord.models.session import horizon, no_horizon
from consul_coord.recipes.cleanup.reaper import SWEEPS, DestroySession, StraySession
from consul_coord.recipes.session.lease import Lease

if TYPE_CHECKING:
    from consul_coord.io import IO
    from consul_coord.models import Session
    from consul_coord.recipes.client import ClientState

_CONSISTENT = ReadOptions(consistency="consistent")
WATCH_SLICE = 1.0
"""While holds depend on it, a keeper looks at the clock this often.

Timers stand still while a machine is suspended.
"""
EARLY = 0.05
EARLY_PART = 0.02
"""A lease is declared over this many seconds before it is, so that the news is not later than the fact."""
TRIES_PER_LEASE = 4
"""A renewal may take this part of the lease at most."""
SHORT_HORIZON = 1.0
"""Seconds. A shorter horizon is warned of."""
LEAST_LEFT = 0.25
"""An acquire renews a lease of which less than this part is left.

The keeper is late, e.g. after a suspend.
"""


class KeptSession:
    """One session on the server, from its creation or adoption to its end."""

    __slots__ = ("checked", "exported", "id", "lease", "outside", "over", "spec")

    def __init__(self, session_id: str, spec: SessionSpec, *, outside: bool) -> None:
        self.id = session_id
        self.spec = spec
        self.outside = outside
        """Whether it was made elsewhere: it is then never destroyed here."""
        self.exported = False
        """Whether somebody else is to go on with it, and with what it holds."""
        self.lease = Lease(drift=spec.drift)
        self.over = Signal()
        """Raised at its end."""
        self.checked = False
        """Whether the server's idea of the session has been compared with ours."""

    @property
    def ours_to_destroy(self) -> bool:
        """Whether its end is this client's business."""
        return not (self.outside or self.exported)

    def is_lost(self, now: float) -> bool:
        """Return whether the session may not be believed in any more, though nobody here ended it."""
        return not self.lease.is_valid(now) and self.lease.ended_by is not LossReason.CLIENT_CLOSED


class SessionSource:
    """Gives the one live session that its users share, made when first asked for."""

    def __init__(self, core: ClientState, spec: SessionSpec | str) -> None:
        self._core = core
        self._spec = spec
        self._making: dict[None, Signal] = {}
        self.current: KeptSession | None = None

    async def live(self, io: IO, *, deadline: float) -> KeptSession:
        """Return a session that may be believed in now; a new one is asked for once.

        Raises what the server or the network says; RequestTimeout at the deadline.
        """
        while True:
            kept = self.current
            if kept is not None and kept.lease.is_valid(io.now()):
                if kept.lease.remaining(io.now()) >= LEAST_LEFT * kept.lease.longest or await self._refresh(
                    io, kept, deadline
                ):
                    return kept
                continue
            mine = Signal()
            making = self._making.setdefault(None, mine)
            if making is mine:
                try:
                    self.current = await self._make(io, deadline)
                finally:
                    self._making.clear()
                    mine.set()
            elif not await io.wait(making, deadline=deadline):
                message = (
                    "no session in time: another thread or task is still waiting for the agent to create it"
                )
                raise RequestTimeout(message, method="PUT", path="/v1/session/create", outcome_unknown=False)

    async def _refresh(self, io: IO, kept: KeptSession, deadline: float) -> bool:
        """Renew a lease that runs out; returns whether it is valid afterwards."""
        # What is left of the lease is good even if this fails; at its end the keeper says so.
        with suppress(ConsulCoordError):
            await renew(io, self._core, kept, deadline=min(deadline, kept.lease.valid_until))
        return kept.lease.is_valid(io.now())

    async def _make(self, io: IO, deadline: float) -> KeptSession:
        core = self._core
        if isinstance(self._spec, str):
            known = core.session(self._spec)
            if known is not None:
                return known
            kept = KeptSession(self._spec, SessionSpec(), outside=True)
            await renew(io, core, kept, deadline=deadline)
        else:
            kept = await self._create(io, self._spec, deadline)
        core.adopt_session(kept)
        return kept

    async def _create(self, io: IO, spec: SessionSpec, deadline: float) -> KeptSession:
        try:
            kept = await self._create_once(io, spec, deadline)
        except NodeNotRegistered as refused:
            from consul_coord.recipes.session import nodes  # seldom needed

            await nodes.provide(io, self._core, spec, refused, deadline=deadline)
            kept = await self._create_once(io, spec, deadline)
        if spec.register_node:
            try:
                await vet_node(io, self._core, spec, deadline)
            except BaseException:
                self._core.reaper.add(DestroySession(kept.id))
                raise
        return kept

    async def _create_once(self, io: IO, spec: SessionSpec, deadline: float) -> KeptSession:
        name = self._core.names.unique(spec.name)
        sent_at = io.now()
        try:
            call = endpoint.create(dataclasses.replace(spec, name=name))
            kept = KeptSession(await send_once(io, call, deadline=deadline), spec, outside=False)
        except BaseException as error:
            # Also a KeyboardInterrupt or a cancellation while the reply was on its way.
            if outcome_unknown(error):
                self._core.reaper.add(StraySession(name, has_ttl=spec.ttl is not None), after=SWEEPS[0])
            raise
        _confirm(io, self._core, kept, sent_at=sent_at, horizon=spec.lease_horizon)
        return kept


class OwnSource(SessionSource):
    """The source of a lock with a session of its own: with the last who refers to it, the session ends."""

    def __del__(self) -> None:
        kept = getattr(self, "current", None)
        if kept is not None and kept.ours_to_destroy and not self._core.closing.is_set():
            self._core.discard_session(kept)


async def vet_node(io: IO, core: ClientState, spec: SessionSpec, deadline: float) -> None:
    """Return if no agent owns the coordination node of a spec. Raises UnsafeSession."""
    from consul_coord.recipes.session import nodes  # seldom needed

    await nodes.vet(io, core, spec, deadline=deadline)


def is_lasting(spec: SessionSpec, session: Session) -> bool:
    """Return whether a session is on the coordination node of a spec: one that is resumed need not be."""
    return spec.register_node and session.node.lower() == (spec.node or "").lower()


async def renew(
    io: IO, core: ClientState, kept: KeptSession, *, deadline: float, caught_up: bool = False
) -> Session:
    """Renew once, and return the session as the server has it; extends the lease.

    ``caught_up``: a consistent read was answered just before, so that one 404 is enough. Raises
    SessionNotFound after ending the session; other errors change nothing.
    """
    try:
        sent_at, session = await (_renew_once if caught_up else _renew_surely)(io, kept, deadline)
    except SessionNotFound:
        core.end_session(kept, LossReason.SESSION_GONE)
        raise
    recovered = not kept.lease.in_contact
    _confirm(io, core, kept, sent_at=sent_at, horizon=_horizon(kept, session))
    if kept.lease.ended_by is None:
        _compare(io, kept, session)
        io.emit(Renewed(kept.id, kept.lease.remaining(io.now()), recovered))
    return session


async def _renew_surely(io: IO, kept: KeptSession, deadline: float) -> tuple[float, Session]:
    try:
        return await _renew_once(io, kept, deadline)
    except SessionNotFound:
        await _wait_for_readiness(io, kept, deadline)
        return await _renew_once(io, kept, deadline)


async def _renew_once(io: IO, kept: KeptSession, deadline: float) -> tuple[float, Session]:
    sent_at = io.now()
    # One try only: a repeat would have to move sent_at.
    return sent_at, await send_once(io, endpoint.renew(kept.id), deadline=deadline)


async def _wait_for_readiness(io: IO, kept: KeptSession, deadline: float) -> None:
    """Return when the leader has applied all that was ever agreed on; only such a leader answers this."""
    # Permission is not the question here: a refusal is an answer as well.
    with suppress(PermissionDenied):
        await send_once(io, endpoint.info(kept.id, options=_CONSISTENT), deadline=deadline)


def _horizon(kept: KeptSession, session: Session) -> float | None:
    """Return what the server grants by its own account of the session.

    Raises UnsafeSession for one without a horizon that was not asked for.
    """
    spec = kept.spec
    if granted := horizon(session.ttl, session.lock_delay, lasting=is_lasting(spec, session)):
        return granted
    if spec.allow_unbounded:
        return session.ttl
    message = (
        f"session {kept.id} can't be used: {no_horizon(session.ttl, session.lock_delay)}. Give one with a "
        "TTL and a lock-delay, or let the client make it: SessionSpec(..., allow_unbounded=True)"
    )
    raise UnsafeSession(message, session=kept.id)


def _confirm(io: IO, core: ClientState, kept: KeptSession, *, sent_at: float, horizon: float | None) -> None:
    kept.lease.confirm(sent_at=sent_at, horizon=horizon)
    if horizon is not None and horizon < SHORT_HORIZON and core.first_warning_of(horizon):
        io.emit(ShortHorizon(kept.id, horizon))


def _compare(io: IO, kept: KeptSession, session: Session) -> None:
    """Report once where the server's session differs from what was asked for."""
    if kept.checked or kept.outside:
        return
    kept.checked = True
    asked = kept.spec
    for setting, wanted, got in (
        ("ttl", asked.ttl, session.ttl),
        ("node_checks", tuple(asked.node_checks), session.node_checks),
        ("service_checks", tuple(asked.service_checks), session.service_checks),
        ("behavior", asked.behavior, session.behavior),
    ):
        if wanted != got:
            io.emit(SessionDiffers(kept.id, setting, str(wanted), str(got)))


async def keep(io: IO, core: ClientState, kept: KeptSession) -> None:
    """Renew a session until it ends: the background program of each session."""
    lease = kept.lease
    failures = 0
    retry_at = lease.sent_at
    spread = io.random()
    while lease.ended_by is None:
        now = io.now()
        over = lease.valid_until - min(EARLY, EARLY_PART * lease.longest)
        due = max(lease.renew_at(spread), retry_at)
        if now >= over:
            core.end_session(kept, LossReason.EXPIRED)
        elif now < due:
            look = now + WATCH_SLICE if core.has_holds_of(kept) else due
            await io.wait(kept.over, deadline=min(due, over, look))
        else:
            try:
                await renew(io, core, kept, deadline=min(over, now + lease.longest / TRIES_PER_LEASE))
            except SessionNotFound:
                return
            except Exception as error:  # noqa: BLE001 - a bug must not end the renewing either
                failures += 1
                _report_failure(io, kept, error)
                retry_at = io.now() + delay(failures, io.random(), most=max(0.05, lease.longest / 20))
            else:
                failures, spread = 0, io.random()


def _report_failure(io: IO, kept: KeptSession, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, ConsulCoordError):
        io.emit(Failed("renewal", text))
    if kept.lease.ended_by is not None:
        return  # given up while the request was under way
    repeated = not kept.lease.in_contact
    kept.lease.in_contact = False
    io.emit(Jeopardy(kept.id, kept.lease.remaining(io.now()), text, repeated))
