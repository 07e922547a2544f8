"""A scheduler for ``celery beat`` that may run on every machine: one of them sends, and the next one knows.

``celery -A shop beat --scheduler consul``, with these settings of the application:

- ``consul_beat_key``: the election's key; ``celery/beat`` by default. The state is below it, in ``state``.
- ``consul_beat_client``: arguments of ``Client``, as a dict; by default the CONSUL_* variables decide.

Rules
- Each run is written down under the leader's fence *before* it is sent. So two beats never send one run,
  however long one of them was paused. A beat that dies between the two leaves that run out.
- A new leader reads the written state, and goes on from there: an interval of an hour stays an hour, however
  often beats come and go.
- A run that can't be written down is not sent: the leader reads the state again first.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from consul_coord import (
    AcquireCancelled,
    AcquireTimeout,
    Client,
    ConsulCoordError,
    LeaderElection,
    NotHeld,
    ReadOptions,
    TxnOp,
)
from consul_coord.integrations._celery import Scheduler

if TYPE_CHECKING:
    from consul_coord import Leadership
    from consul_coord.integrations._celery import ScheduleEntry

DEFAULT_KEY = "celery/beat"
WAIT = 1.0
"""Seconds for which a beat that does not lead waits before it looks whether it is to end."""
_CONSISTENT = ReadOptions(consistency="consistent")

logger = logging.getLogger(__name__)


class ConsulScheduler(Scheduler):
    """Sends the due tasks while this process leads; ``celery beat`` makes it."""

    _client: Client | None = None
    _election: LeaderElection
    _state_key: str
    _led: Leadership | None = None
    """The leadership for which the state was read."""
    _state: dict[str, Any]
    """By entry: when it ran last, and how often. Also of entries that only other versions have."""

    def setup_schedule(self) -> None:
        """Take the entries from the settings, and begin to stand for election."""
        super().setup_schedule()
        conf = self.app.conf
        options: Any = conf.get("consul_beat_client") or {}
        key = str(conf.get("consul_beat_key") or DEFAULT_KEY)
        self._state_key = f"{key}/state"
        self._client = Client(**options)
        self._election = LeaderElection(self._client, key)
        self._election.start()

    @property
    def info(self) -> str:
        """The text that ``celery beat`` shows at its start."""
        return f"    . consul -> {self._state_key}" if self._client is not None else ""

    def tick(self, **options: object) -> float:
        """Send what is due, if this process leads; return the seconds to the next look.

        Raises SystemExit once it is closed, as the handler of a signal does that closes it: Python drops
        what a handler raises while a finalizer runs.
        """
        if self._client is None:
            raise SystemExit
        leadership = self._election.leadership
        if leadership is None:
            self._led = None
            with suppress(AcquireTimeout, AcquireCancelled):
                self._election.wait_for_leadership(timeout=WAIT)
            return 0.0
        if self._led is not leadership:
            try:
                self._restore(leadership)
            except ConsulCoordError as error:
                self._led = None
                logger.warning("beat: the state in Consul can't be read or written: %s", error)
                return WAIT
        return min(super().tick(**options), self._longest_sleep())

    def _longest_sleep(self) -> float:
        """Return the seconds for which this may sleep: no longer than the lease, so that it sees a loss."""
        led = self._led
        return WAIT if led is None else max(WAIT, led.remaining())

    def apply_entry(self, entry: ScheduleEntry, producer: object = None) -> None:
        """Write a run down, then send it."""
        try:
            self._record(entry.name)
        except ConsulCoordError as error:
            self._led = None
            logger.warning("beat: %s was not sent, since it could not be written down: %s", entry.name, error)
            return
        super().apply_entry(entry, producer=producer)

    def close(self) -> None:
        """Give up the leadership; the next beat takes over at once."""
        try:
            super().close()
        finally:
            client, self._client = self._client, None
            if client is not None:
                self._election.stop()
                client.close()

    # -- the state

    def _restore(self, leadership: Leadership) -> None:
        """Go on from what the leader before has written, and write down what it did not know."""
        self._state = self._read()
        for name, entry in self.schedule.items():
            with suppress(KeyError, TypeError, ValueError):
                saved = self._state[name]
                last = datetime.fromisoformat(saved["last_run_at"])
                entry.last_run_at, entry.total_run_count = last, int(saved["total_run_count"])
        self._heap = None  # made anew from the entries
        self._led = leadership
        self._record(*(name for name in self.schedule if name not in self._state))
        logger.info("beat: leads, term %d", leadership.term)

    def _read(self) -> dict[str, Any]:
        if self._client is None:
            raise NotHeld("beat was closed", key=self._state_key)
        pair = self._client.kv.get(self._state_key, options=_CONSISTENT).value
        if pair is None:
            return {}
        try:
            return dict(json.loads(pair.value)["entries"])
        except (KeyError, TypeError, ValueError):
            logger.exception("beat: %s does not hold a state: starting without one", self._state_key)
            return {}

    def _record(self, *names: str) -> None:
        """Write down the last runs of some entries, unless somebody else leads by now."""
        if self._client is None or self._led is None:
            raise NotHeld("beat does not lead", key=self._state_key)
        for name in names:
            entry = self.schedule[name]
            self._state[name] = {
                "last_run_at": entry.last_run_at.isoformat(),
                "total_run_count": entry.total_run_count,
            }
        text = json.dumps({"term": self._led.term, "entries": self._state})
        self._client.txn(*self._led.guard(), TxnOp.set(self._state_key, text))
