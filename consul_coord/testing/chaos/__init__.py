"""Locks, semaphores and elections on a real cluster that is being broken, and a verdict on them.

``python -m consul_coord.testing.chaos --seconds 60 --seed 1`` runs it; docs/chaos.md says what it does.
"""

from __future__ import annotations

from consul_coord.testing.chaos.plan import Plan
from consul_coord.testing.chaos.run import Outcome, play

__all__ = ["Outcome", "Plan", "play"]
