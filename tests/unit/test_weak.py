"""The set that keeps nothing alive."""

from __future__ import annotations

import gc
import sys
import threading

from consul_coord.weak import Alive


class Thing:
    """An object that can be referred to weakly."""


def test_it_has_what_something_else_keeps() -> None:
    alive: Alive[Thing] = Alive()
    kept, taken_out, dropped = Thing(), Thing(), Thing()
    for thing in (kept, taken_out, dropped, kept):
        alive.add(thing)
    alive.discard(taken_out)
    alive.discard(taken_out)
    del dropped, thing
    gc.collect()
    assert alive.all() == [kept]


def test_it_does_not_grow_with_what_has_died() -> None:
    alive: Alive[Thing] = Alive()
    kept = [Thing() for _ in range(50)]
    for thing in kept:
        alive.add(thing)
    for _ in range(10_000):
        alive.add(Thing())
    assert sys.getsizeof(alive._refs) < 20_000
    assert alive.all() == kept


def test_no_code_runs_when_something_dies() -> None:
    alive: Alive[Thing] = Alive()
    thing = Thing()
    alive.add(thing)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del thing
    finally:
        sys.setprofile(None)
    assert called == []
    assert alive.all() == []


def test_threads_can_add_and_look_at_once() -> None:
    alive: Alive[Thing] = Alive()
    kept: list[list[Thing]] = [[Thing() for _ in range(2_000)] for _ in range(4)]

    def add(things: list[Thing]) -> None:
        for thing in things:
            alive.add(thing)
            alive.add(Thing())

    threads = [threading.Thread(target=add, args=(things,)) for things in kept]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        alive.all()
    assert set(alive.all()) == {thing for things in kept for thing in things}
