"""What the simulator has found, each as a world of its own without chance: one process, and what it does."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord.errors import AcquireCancelled
from consul_coord.io import Interrupt
from consul_coord.models import LOCK_FLAGS, SessionSpec
from consul_coord.recipes import lock, release
from consul_coord.recipes.reaper import SWEEPS
from consul_coord.testing.simulation import draw
from consul_coord.testing.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import Any

    from consul_coord.recipes.hold import HoldCore
    from consul_coord.recipes.lock import LockCore
    from consul_coord.testing.simulation.driver import SimIO
    from consul_coord.testing.simulation.process import Process

KEY = "jobs/a"
SPEC = SessionSpec(ttl=8.0, lock_delay=0.0)


def a_lock(*, session: SessionSpec | None = None) -> LockCore:
    return lock.LockCore(
        lock.LockPlan(
            keys=(KEY,),
            value=b"",
            flags=LOCK_FLAGS,
            accept_flags=frozenset(),
            fair=False,
            reentrant=False,
            session=session,
        )
    )


class Scene:
    """A world where nothing goes wrong by itself."""

    def __init__(self) -> None:
        self.world = World(
            replace(
                draw(0),
                processes=0,
                foreign=0,
                keys=(KEY,),
                pools=(),
                elections=(),
                spec=SPEC,
                fates={},
                chaos={},
                skew=0.0,
            )
        )
        self.process: Process = self.world.new_process("p")

    def play(self, program: Callable[[SimIO], Coroutine[Any, Any, object]], *, seconds: float) -> None:
        """Run a program; it must end within so many virtual seconds, without an error."""
        task = self.process.spawn(program, name="program")
        self.world.advance(self.world.scheduler.now + seconds, unless=task.done.is_set)
        assert self.world.judge.violation is None
        assert task.done.is_set()

    async def acquire(
        self, io: SimIO, locked: LockCore, *, timeout: float | None = None, interrupt: Interrupt | None = None
    ) -> HoldCore:
        return await self.process.call(
            io.task,
            lambda io: lock.acquire(io, self.process.core, locked, timeout=timeout),
            interrupt=interrupt,
        )


@pytest.fixture
def scene() -> Generator[Scene]:
    scene = Scene()
    yield scene
    scene.process.end()


def test_a_cancelled_acquire_that_is_applied_late_leaves_nothing_locked(scene: Scene) -> None:
    async def program(io: SimIO) -> None:
        interrupt = Interrupt()
        scene.world.network.delay_next("barge", 0.5)
        scene.process.alarm(io.now() + 0.1, lambda: interrupt.fire(lambda: AcquireCancelled("now", key=KEY)))
        with pytest.raises(AcquireCancelled):
            await scene.acquire(io, a_lock(), interrupt=interrupt)

    scene.play(program, seconds=1.0)
    scene.world.advance(scene.world.scheduler.now + sum(SWEEPS[:2]))
    assert [entry.key for entry in scene.world.cluster.under(KEY)] == [KEY]
    assert scene.world.cluster.holder(KEY) == ""


def test_a_hold_dropped_together_with_its_locks_own_session_gives_up_its_turn(scene: Scene) -> None:
    async def program(io: SimIO) -> None:
        locked = a_lock(session=SPEC)
        circle: list[object] = [locked, await scene.acquire(io, locked)]
        circle.append(circle)
        del circle, locked
        gc.collect()
        await scene.acquire(io, a_lock(session=SPEC), timeout=5.0)

    scene.play(program, seconds=6.0)


def test_what_one_lock_has_left_does_not_stop_another_of_the_same_client_with_a_session_of_its_own(
    scene: Scene,
) -> None:
    async def program(io: SimIO) -> None:
        first, second = a_lock(session=SPEC), a_lock(session=SPEC)
        for locked in (first, second):
            hold = await scene.acquire(io, locked)
            await release.release(io, scene.process.core, hold)
        scene.process.core.polite.add(KEY)  # so that it queues
        scene.world.network.delay_next("join", 0.5)
        interrupt = Interrupt()
        scene.process.alarm(io.now() + 0.1, lambda: interrupt.fire(lambda: AcquireCancelled("now", key=KEY)))
        with pytest.raises(AcquireCancelled):
            await scene.acquire(io, first, interrupt=interrupt)
        await io.sleep(0.6)
        await scene.acquire(io, second, timeout=2 * SWEEPS[0])

    scene.play(program, seconds=5.0)
