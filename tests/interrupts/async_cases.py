"""What is cancelled: the cases of ``cases.py`` on an event loop."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from tests.interrupts.async_stage import KINDS, Case, Scene, gone
from tests.interrupts.cases import SOON

if TYPE_CHECKING:
    from consul_coord import AsyncHold


async def take(scene: Scene) -> None:
    scene.hold = await scene.lock.acquire(timeout=20)


async def stand_in_the_way(scene: Scene) -> None:
    """Have the rival hold it, until the call waits or is over."""
    scene.beside = partial(release_soon, scene, await scene.excluding().acquire(timeout=20))


async def release_soon(scene: Scene, hold: AsyncHold) -> None:
    watches = scene.client._runner.core.watches
    await gone(lambda: not (scene.over or watches._queries or watches.waits))
    await hold.release()


async def acquire(scene: Scene) -> None:
    scene.hold = await scene.lock.acquire(timeout=20)
    scene.done = True


async def try_acquire(scene: Scene) -> None:
    scene.hold = await scene.lock.try_acquire()
    scene.done = True


async def keep_object(scene: Scene) -> None:
    """Keep the object, as a module would. What a call has returned is given back."""
    scene.kept.append(scene.lock)
    if scene.hold is not None:
        await scene.hold.release()


async def release_of_object(scene: Scene) -> None:
    await scene.lock.release()
    scene.done = True


async def take_and_release(scene: Scene) -> None:
    """Both in one task: an object's release means the hold of its caller."""
    await scene.lock.acquire(timeout=20)
    await scene.lock.release()
    scene.done = True


async def release(scene: Scene) -> None:
    await scene.had().release()
    scene.done = True


async def release_again(scene: Scene) -> None:
    """Release once more, and keep everything."""
    scene.kept += [scene.lock, scene.hold]
    began = time.monotonic()
    await scene.had().release()
    assert time.monotonic() < began + SOON, "the second release took long"


async def put(scene: Scene) -> None:
    await scene.had().put(b"new")
    scene.done = True


async def put_again(scene: Scene) -> None:
    """Go on with the hold."""
    scene.kept.append(scene.lock)
    await scene.had().put(b"newer")
    assert scene.had().is_held
    await scene.had().release()


async def block(scene: Scene) -> None:
    async with scene.lock:
        pass
    scene.done = True


async def hold_block(scene: Scene) -> None:
    async with scene.lock.hold(timeout=20):
        await checkpoint()
    scene.done = True


async def run_body(scene: Scene) -> None:
    await scene.lock.run(body, timeout=20)
    scene.done = True


async def body(hold: object) -> None:
    """Do nothing under a hold."""


async def close(scene: Scene) -> None:
    await scene.client.close()
    scene.done = True


async def close_again(scene: Scene) -> None:
    """Close once more, and keep everything."""
    scene.kept += [scene.lock, scene.hold]
    await scene.client.close()


CASES = [
    Case("acquire", KINDS, acquire, after=keep_object),
    Case("acquire that waits", KINDS, acquire, prepare=stand_in_the_way, after=keep_object),
    Case("the first acquire", ("lock", "semaphore"), acquire, after=keep_object, fresh=True),
    Case("try_acquire", KINDS, try_acquire, after=keep_object),
    Case("lock.release", KINDS, take_and_release, after=keep_object),
    Case("hold.release", KINDS, release, prepare=take),
    Case("hold.release, twice", KINDS, release, prepare=take, after=release_again),
    Case("put", ("lock", "multi", "read", "semaphore"), put, prepare=take, after=put_again),
    Case("async with lock", KINDS, block),
    Case("async with lock.hold()", KINDS, hold_block, after=keep_object),
    Case("lock.run", ("lock",), run_body, after=keep_object),
    Case("close", ("lock", "semaphore"), close, prepare=take, after=close_again, fresh=True),
]
