"""Locks, semaphores and elections on a real cluster that is being broken, and a verdict on them.

``python -m proof.chaos --seconds 60 --seed 1`` runs it; docs/chaos.md says what it does.
"""

from __future__ import annotations

from proof.chaos.plan import Plan
from proof.chaos.run import Outcome, play

__all__ = ["Outcome", "Plan", "play"]
