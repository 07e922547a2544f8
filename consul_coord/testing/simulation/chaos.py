"""Faults that come by themselves, apart from any request: each kind at its own pace, until the world heals.

Rules
- Every kind is one row: a name from the plan, and what happens then.
- What an operator does by force is told to the judge: it ends some guarantees, and only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consul_coord.recipes import waitqueue
from consul_coord.server.gotext import SECOND
from consul_coord.testing.simulation.network import FADED
from consul_coord.testing.simulation.trace import short

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.server.records import SessionRecord
    from consul_coord.testing.simulation.dice import Dice
    from consul_coord.testing.simulation.process import Process
    from consul_coord.testing.simulation.world import World


class Chaos:
    """What goes wrong by itself."""

    def __init__(self, world: World, rng: Dice) -> None:
        self._world = world
        self._rng = rng
        self._over = False
        self._kinds: dict[str, Callable[[], object]] = {
            "pause": lambda: self._stand_still(asleep=False),
            "suspend": lambda: self._stand_still(asleep=True),
            "crash": self._crash,
            "cut": self._cut,
            "leader change": lambda: self._leaderless(0.0, 0.3),
            "leaderless": lambda: self._leaderless(1.0, 12.0),
            "agent restart": self._restart,
            "destroy session": self._destroy_session,
            "release key": self._release_key,
            "delete key": self._delete_key,
            "delete contender": self._delete_contender,
            "overwrite": self._overwrite,
            "restore": self._restore,
            "check critical": self._fail_check,
        }

    def begin(self) -> None:
        """Start every kind that the plan has."""
        for name, mean in self._world.plan.chaos.items():
            self._plan_next(name, mean)

    def end(self) -> None:
        """Start nothing any more; what is going on, the world heals."""
        self._over = True

    def _plan_next(self, name: str, mean: float) -> None:
        def strike() -> None:
            if not self._over:
                self._kinds[name]()
                self._plan_next(name, mean)

        self._world.scheduler.after(self._rng.expovariate(1 / mean), strike)

    def _note(self, what: str) -> None:
        self._world.judge.note("world", what)

    def _later(self, least: float, most: float, action: Callable[[], object]) -> float:
        seconds = self._rng.uniform(least, most)
        self._world.scheduler.after(seconds, action)
        return seconds

    # -- processes

    def _victim(self) -> Process | None:
        able = [process for process in self._world.processes if process.able]
        holders = [process for process in able if any(True for _ in process.core.holds())]
        chosen = holders if holders and self._rng.chance(0.5) else able
        return self._rng.choice(chosen) if chosen else None

    def _stand_still(self, *, asleep: bool) -> None:
        process = self._victim()
        if process is None:
            return
        began = self._world.scheduler.now
        valid_until = max((hold.lease.valid_until for hold in process.core.holds()), default=None)
        process.stop()

        def resume() -> None:
            if not process.crashed:
                self._note(f"{process.name} goes on")
                slept = self._world.scheduler.now - began if asleep else 0.0
                process.resume(slept=slept)
                if valid_until is not None and process.clock.now() > valid_until:
                    self._world.judge.see("pause of a holder beyond its lease")

        seconds = self._later(0.0, self._rng.choice((0.5, 8.0)), resume)
        self._note(f"{process.name} stands still for {seconds:.2f} s" + (", asleep" if asleep else ""))

    def _crash(self) -> None:
        process = self._victim()
        if process is None:
            return
        if any(True for _ in process.core.holds()):
            self._world.judge.see("crash of a holder")
        self._note(f"{process.name} crashes")
        process.crash()
        self._later(0.0, 5.0, lambda: None if self._over else self._world.add_process())

    def _cut(self) -> None:
        process = self._victim()
        if process is None:
            return
        process.link.cut = True
        longest = FADED * (self._world.plan.spec.ttl or 0.0)
        self._note(f"{process.name} is cut off for {self._later(0.1, longest, process.link.mend):.2f} s")

    # -- servers

    def _leaderless(self, least: float, most: float) -> None:
        cluster = self._world.cluster
        if cluster.down:
            return
        seconds = self._later(least, most, cluster.elect_leader)
        self._note(f"no leader for {seconds:.2f} s")
        cluster.lose_leader()

    def _restart(self) -> None:
        cluster = self._world.cluster
        if cluster.down:
            return
        self._note(f"the agent restarts, in {self._later(0.05, 4.0, cluster.start):.2f} s")
        cluster.stop()

    def _fail_check(self) -> None:
        cluster = self._world.cluster
        if not cluster.state.leader:
            return
        seconds = self._later(0.05, 3.0, lambda: cluster.set_health(passing=True))
        self._note(f"the node's check is critical for {seconds:.2f} s")
        cluster.set_health(passing=False)

    # -- operators

    def _destroy_session(self) -> None:
        sessions = self._world.cluster.sessions()
        if not sessions or not self._world.cluster.state.leader:
            return
        session = self._rng.choice(sessions)
        self._note(f"an operator destroys {short(session.id)}")
        for key in self._world.plan.keys:
            if self._world.cluster.holder(key) == session.id and not self._covered(session):
                self._world.judge.forced(key)
        self._world.cluster.destroy_session(session.id)

    @staticmethod
    def _covered(session: SessionRecord) -> bool:
        """Return whether the lock-delay outlasts what the session's holder may still believe."""
        return bool(session.node_checks) or session.lock_delay / SECOND >= float(
            session.ttl.rstrip("s") or "inf"
        )

    def _key(self) -> str:
        return self._rng.choice(self._world.plan.keys)

    def _release_key(self) -> None:
        key = self._key()
        if self._world.cluster.state.leader and self._world.cluster.holder(key):
            self._note(f"an operator releases {key}")
            self._world.judge.forced(key)
            self._world.cluster.release(key)

    def _delete_key(self) -> None:
        key = self._key()
        if self._world.cluster.state.leader and self._world.cluster.entry(key) is not None:
            self._note(f"an operator deletes {key}")
            self._world.judge.forced(key)
            self._world.cluster.delete(key)

    def _delete_contender(self) -> None:
        key = self._key()
        contenders = self._world.cluster.under(waitqueue.directory(key))
        if contenders and self._world.cluster.state.leader:
            contender = self._rng.choice(contenders)
            self._note(f"an operator deletes the contender of {short(contender.session)} for {key}")
            self._world.judge.contender_deleted(contender.key)
            self._world.cluster.delete(contender.key)

    def _overwrite(self) -> None:
        if self._world.cluster.state.leader:
            key = self._key()
            self._note(f"an operator writes {key}")
            self._world.cluster.overwrite(key, self._rng.randbytes(2).hex().encode())

    def _restore(self) -> None:
        cluster = self._world.cluster
        if not cluster.state.leader:
            return
        if self._rng.chance(0.5):
            self._note("a snapshot is taken")
            cluster.take_snapshot()
        elif cluster.restore():
            self._note("the snapshot was restored, and its sessions destroyed")
            self._world.judge.restored()
