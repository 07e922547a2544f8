"""What is interrupted: each case prepares a scene, does one thing in it, and may go on after the strike."""

from __future__ import annotations

import gc
import signal
import threading
import time

from consul_coord import Once
from consul_coord.sync import interrupting
from tests.interrupts.stage import KINDS, Case, Scene

SOON = 2.0
"""Seconds within which a call that is made once more has to end."""


def take(scene: Scene) -> None:
    scene.hold = scene.lock.acquire(timeout=20)


def stand_in_the_way(scene: Scene) -> None:
    """Have the rival hold it, until the call waits or is over."""
    hold = scene.excluding().acquire(timeout=20)
    watches = scene.client._runner.core.watches

    def release_soon() -> None:
        while not (scene.over or watches._queries or watches.waits):
            time.sleep(0.001)
        hold.release()

    scene.beside = threading.Thread(target=release_soon, daemon=True)
    scene.beside.start()


def acquire(scene: Scene) -> None:
    scene.hold = scene.lock.acquire(timeout=20)
    scene.done = True


def try_acquire(scene: Scene) -> None:
    scene.hold = scene.lock.try_acquire()
    scene.done = True


def keep_object(scene: Scene) -> None:
    """Keep the object, as a module would. What a call has returned is given back."""
    scene.kept.append(scene.lock)
    if scene.hold is not None:
        scene.hold.release()


def release_of_object(scene: Scene) -> None:
    scene.lock.release()
    scene.done = True


def release(scene: Scene) -> None:
    scene.had().release()
    scene.done = True


def release_again(scene: Scene) -> None:
    """Release once more, and keep everything."""
    scene.kept += [scene.lock, scene.hold]
    began = time.monotonic()
    scene.had().release()
    assert time.monotonic() < began + SOON, "the second release took long"


def put(scene: Scene) -> None:
    scene.had().put(b"new")
    scene.done = True


def put_again(scene: Scene) -> None:
    """Go on with the hold."""
    scene.kept.append(scene.lock)
    scene.had().put(b"newer")
    assert scene.had().is_held
    scene.had().release()


def block(scene: Scene) -> None:
    with scene.lock:
        pass
    scene.done = True


def hold_block(scene: Scene) -> None:
    with scene.lock.hold(timeout=20):
        pass
    scene.done = True


def interrupted_block(scene: Scene) -> None:
    with scene.lock.hold(timeout=20, interrupt=True, max_hold=60.0):
        pass
    scene.done = True


def as_handled_before(scene: Scene) -> None:
    """Keep the object; the signal that a loss is raised by is handled as it was."""
    scene.kept.append(scene.lock)
    gc.collect()  # the block that was struck, in a circle with what struck it
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL, "the handler was not put back"
    assert not interrupting._former


def run_body(scene: Scene) -> None:
    scene.lock.run(body, timeout=20)
    scene.done = True


def run_once(scene: Scene) -> None:
    Once(scene.client, scene.lock.key).run(body, slot="1", timeout=20)
    scene.done = True


def run_once_again(scene: Scene) -> None:
    """Run the slot again: it runs, or has run."""
    scene.kept.append(scene.lock)
    result = Once(scene.client, scene.lock.key).run(body, slot="1", timeout=20)
    assert result.ran or not result.failed


def body(hold: object) -> None:
    """Do nothing under a hold."""


def close(scene: Scene) -> None:
    scene.client.close()
    scene.done = True


def close_again(scene: Scene) -> None:
    """Close once more, and keep everything."""
    scene.kept += [scene.lock, scene.hold]
    scene.client.close()


CASES = [
    Case("acquire", KINDS, acquire, after=keep_object),
    Case("acquire that waits", KINDS, acquire, prepare=stand_in_the_way, after=keep_object),
    Case("the first acquire", ("lock", "semaphore"), acquire, after=keep_object, fresh=True),
    Case("try_acquire", KINDS, try_acquire, after=keep_object),
    Case("lock.release", KINDS, release_of_object, prepare=take),
    Case("hold.release", KINDS, release, prepare=take),
    Case("hold.release, twice", KINDS, release, prepare=take, after=release_again),
    Case("once.run", ("lock",), run_once, after=run_once_again),
    Case("put", ("lock", "multi", "read", "semaphore"), put, prepare=take, after=put_again),
    Case("with lock", KINDS, block),
    Case("with lock.hold()", KINDS, hold_block, after=keep_object),
    Case("with lock.hold(), interruptible", KINDS, interrupted_block, after=as_handled_before, slow=True),
    Case("lock.run", ("lock",), run_body, after=keep_object),
    Case("close", ("lock", "semaphore"), close, prepare=take, after=close_again, fresh=True),
]
