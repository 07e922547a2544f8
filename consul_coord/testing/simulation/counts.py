"""Which rare branches a suite of runs has visited: a simulation that never gets there proves nothing."""

from __future__ import annotations

from collections import Counter

from consul_coord.testing.simulation.plan import CHAOS, FATES, MORE_CHAOS

SOMETIMES = (
    *(f"fate: {name}" for name in FATES),
    *(f"chaos: {name}" for name in (*CHAOS, *MORE_CHAOS)),
    "lost reply on barge",
    "lost reply on join",
    "lost reply on take",
    "lost reply on unlock",
    "session resumed",
    "session resumed in vain",
    "refused: SessionNotFound",
    "several keys taken",
    "several keys taken past a queue",
    "lost reply on several",
    "late barge applied",
    "late barge refused",
    "late join applied",
    "late take refused",
    "late unlock refused",
    "twice on take",
    "adopted",
    "rejoined",
    "refused by lock-delay",
    "head died in lock-delay",
    "head died",
    "follower died",
    "session ended while it waited",
    "reaper found: GiveBack",
    "reaper found: Sweep",
    "reaper: GiveBack",
    "reaper: RemoveKey",
    "reaper: DestroySession",
    "lost: expired",
    "lost: session_gone",
    "lost: released_by_other",
    "lost: key_deleted",
    "lost: taken_over",
    "lost: max_hold",
    "lost: stalled",
    "stuck",
    "jeopardy survived",
    "hold forgotten",
    "overwritten",
    "released: released",
    "released: already_lost",
    "released: unknown",
    "timed out: held",
    "timed out: queued",
    "timed out: lock_delay",
    "timed out: unreachable",
    "cancelled",
    "task cancelled",
    "interrupted by Ctrl-C",
    "tried in vain",
    "guarded write refused",
    "stale fence refused",
    "foreign hold",
    "crash of a holder",
    "pause of a holder beyond its lease",
    "permission denied",
    "refused: PermissionDenied",
    "double refused",
    "job done",
    "job failed",
    "job skipped",
    "job waited in vain",
    "job without a record",
    "record cut short",
    "clocks beyond the bound",
    "lost reply on slot-take",
    "lost reply on slot-take-at-once",
    "late slot-take refused",
    "slot adopted",
    "slot taken at once",
    "slot-take-at-once refused",
    "slot-take refused",
    "slot-take refused thrice",
    "slot session used again",
    "several slots taken",
    "dead holder pruned",
    "slot in lock-delay",
    "holder of a slot died",
    "foreign slot",
    "resized",
    "limit conflict",
    "refused: DecodeError",
    "record rewritten",
    "lost: slot_removed",
    "lost reply on elect",
    "elected",
    "resigned",
    "handed over",
    "heir elected",
    "proclaimed",
    "change of leadership seen",
    "on_elected awaited",
    "low priority elected",
)
"""The branches that a whole suite must have seen at least once."""


class Counts:
    """How often each thing was seen."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def see(self, what: str) -> None:
        """Note that something was seen."""
        self.seen[what] += 1

    def add(self, others: Counts) -> None:
        """Add what another run has seen."""
        self.seen.update(others.seen)

    @staticmethod
    def expected() -> tuple[str, ...]:
        """Return what should be seen in a whole suite."""
        return SOMETIMES

    def missing(self) -> list[str]:
        """Return what should have been seen and was not."""
        return [what for what in SOMETIMES if not self.seen[what]]
