"""Each place hears of each of its own changes, soon and of no other's, wherever the places are.

The server is a tree of keys, which answers a query as soon as something has changed below its prefix. The
followers of folders read at once, and go on waiting.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import PermissionDenied, ResponseError
from consul_coord.events import Retried
from consul_coord.http.backoff import LONGEST_PAUSE
from consul_coord.http.messages import Response
from consul_coord.io import Signal
from consul_coord.recipes.watch.places import LINGER, Folder
from consul_coord.recipes.watch.together import AVOIDED, ROUND, SHORTEST_QUERY, Together
from tests.support.counted import Counted
from tests.support.fake_io import FakeIO
from tests.support.replies import entry, ok, refusal, txn_done, txn_failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from consul_coord.http.messages import Request
    from consul_coord.io import IO

SOON = 0.2
"""Seconds within which a place hears of a change where all places have one query."""
RENEWAL = 600.0


@dataclass
class Asked:
    """One request for the index of a folder."""

    at: float
    path: str
    wait: float
    """Seconds for which it may wait; 0 for a look."""


class Tree(FakeIO):
    """The server."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self.index = 10
        self.changed_at = dict.fromkeys(keys, 7)
        """By key, also for those that are gone."""
        self.keys = {*keys}
        self.hidden: set[str] = set()
        """Prefixes that the token may not list; it may list others within."""
        self.asked: list[Asked] = []
        self.readings: list[float] = []
        self.failing: set[str] = set()
        """Prefixes, and keys, that can't be read at present."""
        self.renewal_takes = 0.0
        """Seconds until a query may begin, as a renewal goes first."""

    # -- for the test

    def write(self, key: str) -> None:
        self.index += 1
        self.keys.add(key)
        self.changed_at[key] = self.index

    def delete(self, key: str) -> None:
        self.index += 1
        self.keys.discard(key)
        self.changed_at[key] = self.index

    @property
    def queries(self) -> list[Asked]:
        return [each for each in self.asked if each.wait]

    async def longest(self, io: IO, /, *, until: Signal | None) -> float:
        if self.renewal_takes:
            await io.wait(Signal() if until is None else until, deadline=io.now() + self.renewal_takes)
        return RENEWAL

    # -- the server

    def index_of(self, prefix: str) -> int:
        return max((at for key, at in self.changed_at.items() if key.startswith(prefix)), default=self.index)

    def _names(self, prefix: str) -> Response:
        found = {
            prefix + rest[: rest.index("/") + 1] if "/" in rest else key
            for key in self.keys
            if key.startswith(prefix)
            for rest in [key.removeprefix(prefix)]
        }
        if not found:
            return Response(404, {"x-consul-index": str(self.index_of(prefix))}, b"")
        return ok(sorted(found), index=self.index_of(prefix))

    async def send(self, request: Request, *, deadline: float) -> Response:
        assert self.time < deadline <= self.time + 60.0, "it has no time, or no end"
        assert "consistent" in dict(request.params), "an old leader would hide a change for good"
        if request.method == "PUT":
            self.readings.append(self.time)
            keys = [op["KV"]["Key"] for op in json.loads(request.body or b"")]
            if self.failing & {*keys}:
                return refusal(500, "rpc error making call: EOF")
            if missing := [number for number, key in enumerate(keys) if key not in self.keys]:
                return txn_failed(*((number, "key doesn't exist") for number in missing))
            return txn_done(*(entry(key, index=self.changed_at[key]) for key in keys))
        answer = await self.changed(request)
        assert answer is not None
        return answer

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        prefix, index = request.path.removeprefix("/v1/kv/"), int(dict(request.params).get("index", 0))
        self.asked.append(Asked(self.time, prefix, request.hold_open))
        if prefix in self.failing:
            return refusal(500, "rpc error making call: EOF")
        if prefix in self.hidden:
            return refusal(403, "Permission denied")
        ends = self.time + request.hold_open
        while self.index_of(prefix) <= index and self.time < ends:
            self._advance(min(self._agenda[0][0] if self._agenda else ends, ends), until)
            if until is not None and until.is_set():
                return None
        return self._names(prefix)


class Place(ABC):
    """A folder that is followed, or the key of a hold: what it has heard of, and when."""

    def __init__(self, world: World, path: str) -> None:
        self.world, self.path = world, path
        self.heard: list[float] = []

    def has(self, key: str) -> bool:
        return key.startswith(self.path + "/")

    @abstractmethod
    def end(self) -> None:
        """Stop following it."""


class Followed(Place):
    def __init__(self, world: World, path: str) -> None:
        super().__init__(world, path)
        self.folder = Folder(path)
        self.reads = 0
        self.begin()

    def begin(self) -> None:
        io = self.world.io
        assert io.run(self.world.together.change(io, self.folder, until=None))
        self.read()

    def read(self) -> None:
        self.reads += self.folder.is_doubtful
        self.folder.known, self.folder.is_doubtful = self.folder.at, False
        self.waiting = Signal()
        self.waiting.subscribe(self.hear)
        self.folder.await_with(self.waiting)

    def hear(self) -> None:
        self.heard.append(self.world.io.time)
        self.read()

    def end(self) -> None:
        self.folder.leave()
        self.world.together._end_if_idle()


class Held(Place):
    directory: str | None = None
    is_member = True
    along: Sequence[Any] = ()
    index = 7
    kept: Any = None

    def __init__(self, world: World, key: str) -> None:
        super().__init__(world, key)
        self.key, self.over = key, Signal()
        self.seen_last: int | None = 7
        self.looks: list[float] = []
        world.together.watch(self)

    def has(self, key: str) -> bool:
        return key == self.key

    async def seen(self, io: IO, result: Any, /, *, consistent: bool) -> None:
        assert not consistent, "it was read beside others"
        self.looks.append(io.now())
        index = None if result.value is None else result.value.modify_index
        if index != self.seen_last:
            self.heard.append(io.now())
        self.seen_last = index

    def end(self) -> None:
        self.over.set()


@dataclass
class World:
    """A client whose places share a query."""

    io: Tree
    places: list[Place] = field(default_factory=list["Place"])

    def __post_init__(self) -> None:
        self.together = Together(self.io, self.io.longest, timeout=10.0)

    def add(self, kind: type[Place], *paths: str) -> None:
        self.places += [kind(self, path) for path in paths]

    def run_until(self, time: float) -> None:
        """Go on until then, when all places end."""

        def end() -> None:
            for place in self.places:
                place.end()

        self.io.at(time, end)
        self.io.run_spawned("changes of groups")


@dataclass(frozen=True)
class Layout:
    """Folders and holds, and what else there is."""

    folders: tuple[str, ...]
    holds: tuple[str, ...] = ()
    beside: str = ""
    """A key that is in no place, where something changes, too."""
    within: float = SOON
    """Seconds until a place hears of a change."""


LAYOUTS = {
    "one folder": Layout(("g/a",)),
    "in one folder": Layout(("g/a", "g/b"), beside="g/c"),
    "one in another": Layout(("g", "g/a"), beside="h"),
    "apart": Layout(("a/x", "b/y", "c/z"), beside="d", within=ROUND + SOON),
    "holds": Layout((), ("g/a/me", "g/b/me"), beside="g/a/you"),
    "a hold in its folder": Layout(("g/a",), ("g/a/me",), beside="h"),
    "holds, apart": Layout(("g/a",), ("h/a/me", "i/me"), beside="h/b", within=ROUND + SOON),
}
EACH = 10.0
"""Seconds from one change to the next."""


def world_of(layout: Layout) -> World:
    there = [f"{folder}/first" for folder in layout.folders]
    world = World(Tree(*there, *layout.holds, *filter(None, [layout.beside])))
    world.add(Followed, *layout.folders)
    world.add(Held, *layout.holds)
    return world


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_place_hears_of_its_own_changes_soon_and_of_no_others(name: str) -> None:
    layout = LAYOUTS[name]
    world, at, changes = world_of(layout), 1030.0, list[tuple[float, str]]()

    def happens(change: Callable[[str], object], key: str) -> None:
        nonlocal at
        changes.append((at, key))
        world.io.at(at, lambda: change(key))
        at += EACH

    for folder in layout.folders:
        happens(world.io.write, f"{folder}/second")
        happens(world.io.write, f"{folder}/first")
        happens(world.io.delete, f"{folder}/second")
        happens(world.io.delete, f"{folder}/first")  # nothing is left in it
        happens(world.io.write, f"{folder}/first")
    for key in [layout.beside] * bool(layout.beside):
        happens(world.io.write, key)
        happens(world.io.delete, key)
    for hold in layout.holds:
        happens(world.io.write, hold)
        happens(world.io.delete, hold)
    world.run_until(at)
    for place in world.places:
        due = [when for when, key in changes if place.has(key)]
        assert len(place.heard) == len(due), place.path
        for heard, when in zip(place.heard, due, strict=True):
            assert when <= heard <= when + layout.within, place.path
        if isinstance(place, Followed):
            assert place.reads == 1, "all in it was read again for nothing"
    assert world.io.time <= at + SOON, "it goes on when nobody needs it"


@pytest.mark.parametrize("name", LAYOUTS)
def test_places_in_which_nothing_happens_cost_little(name: str) -> None:
    layout = LAYOUTS[name]
    world = world_of(layout)
    world.run_until(1300.0)
    late = [each for each in world.io.queries if each.at >= 1060.0]
    covers = {each.path for each in late}
    assert late
    if layout.within > SOON:
        assert len(late) <= 240.0 / (ROUND / len(covers)) * 1.1, "each has its turn, and no more"
    else:
        assert len(covers) == 1
        assert len(late) <= 240.0 / (5.0 if layout.holds else 20.0)
    looks = [*(each.at for each in world.io.asked if not each.wait), *world.io.readings]
    assert max(looks) < 1001.0, "it looked for nothing"


def test_a_place_that_is_added_is_looked_at_and_its_query_begins_at_once() -> None:
    world = World(Tree("g/a/first", "g/a/me", "h/first"))
    world.add(Followed, "g/a")
    world.io.at(1020.0, lambda: world.add(Held, "g/a/me"))
    world.io.at(1019.9, lambda: world.io.delete("g/a/me"))  # a hold that is gone before it is watched
    world.io.at(1040.0, lambda: world.add(Followed, "h"))
    world.io.at(1041.0, lambda: world.io.write("h/first"))
    world.run_until(1080.0)
    _, hold, other = world.places
    assert isinstance(hold, Held)
    assert hold.looks[0] <= 1020.0 + SOON
    assert other.heard == pytest.approx([1041.0], abs=ROUND + SOON)
    first = next(each for each in world.io.queries if each.at >= 1020.0)
    assert first.wait == pytest.approx(SHORTEST_QUERY, rel=0.1), "the agent goes on with one that is given up"


def test_a_renewal_that_goes_first_keeps_no_new_place_waiting() -> None:
    world = World(Tree("g/a/first", "h/first"))
    world.add(Followed, "g/a")
    world.io.renewal_takes = 50.0

    def add() -> None:
        world.io.renewal_takes = 0.0
        world.add(Followed, "h")

    world.io.at(1020.0, add)
    world.io.at(1021.0, lambda: world.io.write("h/first"))
    world.run_until(1030.0)
    assert world.places[1].heard == pytest.approx([1021.0], abs=ROUND + SOON)
    assert not [each for each in world.io.queries if each.at < 1020.0]


def test_without_a_follower_that_waits_it_goes_on_for_a_moment_alone() -> None:
    world = World(Tree("g/a/first"))
    world.add(Followed, "g/a")
    (place,) = world.places
    assert isinstance(place, Followed)
    world.io.at(1100.0, lambda: setattr(place, "waiting", None))
    world.io.at(1100.0, lambda: world.io.write("g/a/first"))
    world.io.run_spawned("changes of groups")
    assert place.folder.is_new, "a change of that moment is noted"
    assert 1100.0 + LINGER <= world.io.time <= 1100.0 + 2 * LINGER + 1.0


@pytest.mark.parametrize("kind", [Followed, Held])
def test_a_folder_in_which_the_places_themselves_change_is_asked_for_as_a_whole(kind: type[Place]) -> None:
    world = World(Tree("g/a/me", "g/b/me"))
    world.add(kind, *(f"g/{each}" for each in ("a/me", "b/me")) if kind is Held else ("g/a", "g/b"))
    for second in range(40):
        world.io.at(1010.0 + second, lambda: world.io.write("g/b/me"))
    world.run_until(1060.0)
    assert {each.path for each in world.io.queries} == {"g"}
    assert len(world.places[1].heard) == 40


def test_parts_of_a_folder_that_may_not_be_listed_take_turns_for_a_while() -> None:
    world = World(Tree("g/a/first", "g/b/first"))
    world.add(Followed, "g/a", "g/b")
    world.io.hidden.add("g")
    for at, folder in ((1030.0, "g/a"), (1040.0, "g/b")):
        world.io.at(at, lambda folder=folder: world.io.write(f"{folder}/first"))  # type: ignore[misc]
    world.run_until(1200.0)
    whole = [each.at for each in world.io.asked if each.path == "g"]
    gaps = [later - before for before, later in pairwise(whole)]
    assert gaps == pytest.approx([AVOIDED] * 3, abs=2 * ROUND)
    assert [place.heard for place in world.places] == [
        pytest.approx([1030.0], abs=ROUND + SOON),
        pytest.approx([1040.0], abs=ROUND + SOON),
    ]
    assert [place.reads for place in world.places if isinstance(place, Followed)] == [1, 1]


def test_a_folder_that_may_not_be_read_any_more_keeps_no_other_from_hearing() -> None:
    world = World(Tree("g/a/first", "g/b/first"))
    world.add(Followed, "g/a", "g/b")
    world.io.at(1010.0, lambda: world.io.hidden.add("g/a"))
    world.io.at(1020.0, lambda: world.io.write("g/b/first"))
    world.run_until(1021.0)
    refused, other = world.places
    assert refused.heard == pytest.approx([1020.0], abs=SOON), "it is to ask by itself"
    assert isinstance(refused, Followed)
    assert refused.reads == 2, "and to read all"
    assert other.heard == pytest.approx([1020.0], abs=SOON)
    assert isinstance(other, Followed)
    assert other.reads == 1


@pytest.mark.parametrize("refused_first", [False, True])
@pytest.mark.parametrize("kind", [Followed, Held])
def test_a_look_that_fails_for_a_while_is_made_good_and_keeps_no_other_folder_waiting(
    kind: type[Place], refused_first: bool
) -> None:
    world = World(Tree("g/a/me", "g/b/me"))
    paths = ["g/a/me" if kind is Held else "g/a", "g/b"]
    for path in reversed(paths) if refused_first else paths:
        world.add(kind if path == paths[0] else Followed, path)
    world.places.sort(key=lambda place: place.path)
    failing = {world.places[0].path}
    world.io.at(1010.0, lambda: world.io.failing.update(failing))
    world.io.at(1020.0, lambda: world.io.write("g/a/me"))
    world.io.at(1020.0, lambda: world.io.write("g/b/me"))
    world.io.at(1040.0, world.io.failing.clear)
    world.run_until(1060.0)
    first, other = world.places
    assert first.heard == pytest.approx([1040.0 + LONGEST_PAUSE / 2], abs=LONGEST_PAUSE / 2 + SOON)
    assert other.heard == pytest.approx([1020.0], abs=SOON if kind is Followed else 40.0)
    assert isinstance(other, Followed)
    assert other.reads == 1
    rounds = [each for each in world.io.seen(Retried) if each.method == "GET"]
    assert 0 < len(rounds) < 20, "ever more seldom"


@pytest.mark.parametrize("trouble", ["hidden", "failing"])
def test_the_first_look_into_a_folder_raises_what_stands_in_the_way(trouble: str) -> None:
    world = World(Tree("g/a/first"))
    getattr(world.io, trouble).add("g/a")
    with pytest.raises(PermissionDenied if trouble == "hidden" else ResponseError):
        world.add(Followed, "g/a")


def test_a_place_that_fails_is_asked_for_ever_more_seldom_though_others_have_their_turns() -> None:
    world = World(Tree("a/me", "b/me", "c/me"))
    world.add(Followed, "a", "b", "c")
    world.io.at(1010.0, lambda: world.io.failing.add("a"))
    world.io.at(1110.0, world.io.failing.clear)
    world.io.at(1140.0, lambda: world.io.write("a/me"))
    world.run_until(1150.0)
    assert len([each for each in world.io.asked if each.path == "a" and 1010.0 < each.at < 1110.0]) < 25
    assert world.places[0].heard == pytest.approx([1140.0], abs=ROUND + SOON)


def test_a_folder_that_has_always_been_empty_hears_of_no_other_folders_changes() -> None:
    """Consul gives its index as that of all keys."""
    world = World(Tree("h/me"))
    world.add(Followed, "g")
    for at in (1010.0, 1020.0):
        world.io.at(at, lambda: world.io.write("h/me"))
    world.io.at(1030.0, lambda: world.io.write("g/me"))
    world.run_until(1040.0)
    assert world.places[0].heard == pytest.approx([1030.0], abs=SOON)


def test_a_hundred_folders_that_change_at_once_are_looked_at_in_turn() -> None:
    world = World(Tree(*(f"g/{number}/me" for number in range(300))))
    world.add(Followed, *(f"g/{number}" for number in range(150)))
    world.add(Held, *(f"g/{number}/me" for number in range(150, 300)))
    began = world.io.time

    def change() -> None:
        for number in range(300):
            world.io.write(f"g/{number}/me")

    world.io.at(began + 100.0, change)
    world.run_until(began + 200.0)
    assert {len(place.heard) for place in world.places} == {1}
    looks = sorted(each.at for each in world.io.asked if not each.wait and each.at >= began + 100.0)
    assert len(looks) == 150
    assert 0.3 < looks[-1] - looks[0] < 5.0, "so many requests at once keep the agent from others"


# -- one follower's call


def test_a_call_waits_for_the_next_change_and_ends_when_it_is_told_to() -> None:
    world = World(Tree("g/a/first"))
    io, folder, until = world.io, Folder("g/a"), Counted()

    def change() -> bool:
        changed = io.run(world.together.change(io, folder, until=until))
        assert folder.is_left(io.time) is not changed, "as long as it is not told to end, the follower reads"
        return changed

    assert change()
    assert (folder.at, len(io.asked)) == (7, 1)
    folder.known, folder.is_doubtful = 7, False
    io.at(1003.0, lambda: folder.hear(9, io.time))
    assert change()
    assert io.time == 1003.0
    assert change(), "there is still something to read"
    folder.known = 9
    assert io.time == 1003.0
    io.at(1005.0, until.set)
    assert not change()
    assert io.time == 1005.0
    assert len(io.asked) == 1, "it looked again for nothing"
    assert not until.listening
    io.run_spawned("changes of groups")
    assert io.time == 1005.0
    assert not io.queries


def test_a_call_that_is_told_to_end_ends_the_query_that_nobody_needs_then() -> None:
    world = World(Tree("g/a/first", "g/b/first"))
    world.add(Followed, "g/a")
    (place,) = world.places
    assert isinstance(place, Followed)
    io, until = world.io, Signal()

    def call() -> None:
        io.at(1101.0, until.set)
        assert not io.run(world.together.change(io, place.folder, until=until))

    io.at(1100.0, call)
    io.run_spawned("changes of groups")
    assert 1101.0 <= io.time <= 1101.0 + SOON
