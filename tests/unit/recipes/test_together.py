"""Sharing one query: the folders that are asked for, and the changes that a follower has to read."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.errors import PermissionDenied
from consul_coord.http.backoff import FIRST
from consul_coord.io import Signal
from consul_coord.recipes.watch.batch import BATCH
from consul_coord.recipes.watch.places import LINGER, REMEMBERED, Folder
from consul_coord.recipes.watch.together import (
    AVOIDED,
    IN_VAIN,
    LONGEST_HELD,
    LOOKS_PER_SECOND,
    ROUND,
    SHORTEST_QUERY,
    Together,
    covers_of,
)
from tests.support.fake_io import FakeIO
from tests.support.replies import entry, ok, txn_done, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from consul_coord.errors import ConsulCoordError
    from consul_coord.http.messages import Request, Response
    from consul_coord.io import IO
    from consul_coord.recipes.watch.places import Watched


@pytest.mark.parametrize(
    ("paths", "avoided", "covers"),
    [
        ([], [], []),
        (["a/b/c"], [], ["a/b/c"]),
        (["a/b/c", "a/b/c"], ["a/b/c"], ["a/b/c"]),
        (["a/b/c", "a/b/d", "a/b"], [], ["a/b"]),
        (["a/b", "a/b/c/d"], [], ["a/b"]),
        (["a/b", "a/b/c/d"], ["a/b"], ["a/b", "a/b/c/d"]),
        (["a/b", "a/b/c/d", "a/b/c/e"], ["a/b"], ["a/b", "a/b/c"]),
        (["a/b/c", "a/d/e", "b/x"], [], ["a", "b/x"]),
        (["a/b/c", "a/b/d", "a/e/f"], ["a"], ["a/b", "a/e/f"]),
        (["a/b/c", "a/b/d", "a/e/f"], ["a", "a/b"], ["a/b/c", "a/b/d", "a/e/f"]),
        (["a/bc", "a/bd"], [], ["a"]),
        (["abc", "abd"], [], ["abc", "abd"]),
        (["/a/b", "/a/c"], [], ["/a"]),
        (["/a/b", "/c/d"], [], ["/a/b", "/c/d"]),
    ],
)
def test_the_fewest_folders_that_contain_all_places(
    paths: list[str], avoided: list[str], covers: list[str]
) -> None:
    assert sorted(covers_of(paths, avoided.__contains__)) == covers


@pytest.fixture
def folder() -> Folder:
    """Return a folder that its follower has read at index 7, at 100 s."""
    folder = Folder("a/members")
    folder.hear(7, 100.0)
    folder.known, folder.is_doubtful = 7, False
    return folder


def test_the_first_look_is_to_be_read_whole() -> None:
    folder = Folder("a/members")
    folder.hear(7, 100.0)
    assert folder.is_new
    assert folder.is_doubtful


@pytest.mark.parametrize(
    ("index", "now", "is_new", "is_doubtful"),
    [
        (7, 101.0, False, False),
        (8, 101.0, True, False),
        (0, 101.0, True, False),  # it was emptied
        (6, 101.0, True, True),  # a snapshot was restored, or a deletion forgotten
        (7, 100.0 + REMEMBERED, False, False),
        (7, 101.0 + REMEMBERED, True, True),
        (8, 101.0 + REMEMBERED, True, True),
    ],
)
def test_a_look_shows_whether_there_is_something_to_read(
    folder: Folder, index: int, now: float, is_new: bool, is_doubtful: bool
) -> None:
    waiting = Signal()
    folder.await_with(waiting)
    folder.hear(index, now)
    assert (folder.is_new, folder.is_doubtful, waiting.is_set()) == (is_new, is_doubtful, is_new)


def test_a_change_that_was_read_before_it_was_heard_of_is_not_new(folder: Folder) -> None:
    folder.known = 9
    folder.hear(8, 101.0)
    assert not folder.is_new
    folder.hear(10, 101.0)
    assert folder.is_new


def test_a_folder_is_kept_for_a_moment_for_a_follower_that_reads(folder: Folder) -> None:
    waiting = Signal()
    folder.await_with(waiting)
    assert not folder.is_left(1_000.0)
    folder.hear(8, 1_000.0)
    assert not folder.is_left(1_000.0)
    assert not folder.is_left(1_000.0 + LINGER / 2)
    assert folder.is_left(1_000.0 + LINGER)
    folder.await_with(again := Signal())
    assert not folder.is_left(2_000.0)
    assert not again.is_set()


def test_a_call_that_was_interrupted_keeps_nothing(folder: Folder) -> None:
    waiting = Signal()
    folder.await_with(waiting)
    del waiting
    assert not folder.is_waited_for


def test_a_follower_that_ends_is_forgotten_at_once(folder: Folder) -> None:
    waiting = Signal()
    folder.await_with(waiting)
    folder.leave()
    assert folder.is_left(101.0)


class Leader(FakeIO):
    """Answers each look into a folder, and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Request] = []

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        self.asked.append(request)
        return ok(["g/m/a"], index=9)


def test_the_first_look_into_a_folder_asks_the_leader() -> None:
    """An old leader would give an index from which later changes are missed."""

    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    io, folder = Leader(), Folder("g/m")
    together = Together(io, longest, timeout=10.0)
    assert io.run(together.change(io, folder, until=None))
    assert folder.at == 9
    (look,) = io.asked
    assert "consistent" in dict(look.params)
    assert not look.hold_open


@pytest.mark.parametrize(("other", "ends"), [("g/n", True), ("h", True), ("g/m/part", False)])
@pytest.mark.usefixtures("more_than_asked")
def test_a_further_folder_ends_the_query_under_way_unless_that_covers_it(other: str, ends: bool) -> None:
    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    folders = [Folder("g/m"), Folder(other)]
    waiting = [Signal(), Signal()]

    def follow_another() -> None:
        assert io.run(together.change(io, folders[1], until=None))
        folders[1].await_with(waiting[1])

    io = Server(follow_another, *[int] * 9)
    together = Together(io, longest, timeout=10.0)
    assert io.run(together.change(io, folders[0], until=None))
    folders[0].known, folders[0].is_doubtful = folders[0].at, False
    folders[0].await_with(waiting[0])
    io.expect("GET", "/v1/kv/g/", *[ok(["g/x"], index=7)] * 9)  # where both have one query
    for folder in folders:
        io.at(1002.0, folder.leave)
    io.run_spawned("changes of groups")
    assert io.given_up == ends


class Returning(Folder):
    """A folder whose follower, in another thread, comes back just when it is found to be left."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.change = Signal()
        self._returns = [self.change]

    def is_left(self, now: float) -> bool:
        left = super().is_left(now)
        if left and self._returns:
            self.await_with(self._returns.pop())
        return left


def test_a_follower_that_comes_back_just_when_it_is_forgotten_hears_of_the_next_change() -> None:
    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    io, folder = Server(*[lambda: None] * 9), Returning("g/m")
    together = Together(io, longest, timeout=10.0)
    assert io.run(together.change(io, folder, until=None))
    folder.known, folder.is_doubtful = folder.at, False
    io.at(io.time + 2 * LINGER, lambda: setattr(io, "index", 12))
    io.run_spawned("changes of groups")
    assert folder.change.is_set()


def test_a_folder_in_which_nothing_happens_for_long_is_not_read_again_at_its_next_change() -> None:
    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    def change() -> None:
        io.index += 1

    io, folder, changed = Server(*[int] * 30, change), Folder("g/m"), Signal()
    together = Together(io, longest, timeout=10.0)
    assert io.run(together.change(io, folder, until=None))
    folder.known, folder.is_doubtful = folder.at, False
    folder.await_with(changed)
    io.meanwhile.append(folder.leave)
    io.run_spawned("changes of groups")
    assert io.time > 1000.0 + REMEMBERED
    assert folder.at == io.index
    assert changed.is_set()
    assert not folder.is_doubtful


@pytest.mark.usefixtures("more_than_asked")
def test_a_change_is_noticed_in_each_of_a_hundred_folders_without_a_pause() -> None:
    """Up to so many cost a change about a millisecond each: that of the request."""

    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    def change() -> None:
        io.index += 1

    def leave() -> None:
        for each in folders:
            each.leave()

    io, folders, told = Server(*[int] * 8, change, leave), [Folder(f"g/{n}/m") for n in range(100)], []
    changes = [Signal() for _ in folders]
    together = Together(io, longest, timeout=10.0)
    for folder, changed in zip(folders, changes, strict=True):
        assert io.run(together.change(io, folder, until=None))
        folder.known, folder.is_doubtful = folder.at, False
        folder.await_with(changed)
        changed.subscribe(lambda: told.append(io.now()))
    io.expect("GET", "/v1/kv/g/", *[lambda _: ok(["g/x"], index=io.index)] * 1_000)
    io.run_spawned("changes of groups")
    assert len(told) == len(folders)
    assert max(told) - min(told) < 0.1


# -- holds that are watched together


class Held:
    """The key of a hold, of which readings are noted."""

    directory: str | None = None
    is_member = True
    along: tuple[Watched, ...] = ()
    index = 7

    def __init__(self, key: str) -> None:
        self.key = key
        self.over = Signal()
        self.kept: Any = None
        self.readings: list[int] = []
        self.seen_at: list[float] = []
        self.unsure: list[ConsulCoordError] = []
        """What stands in the way of knowing what the next readings mean."""

    async def seen(self, io: IO, result: Any, /, *, consistent: bool) -> None:
        self.seen_at.append(io.now())
        assert not consistent, "it was read beside others"
        self.readings.append(result.value.modify_index)
        if self.unsure:
            raise self.unsure.pop()


class Server(FakeIO):
    """Answers as one that has whatever is asked for, and does something while a query waits."""

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.meanwhile = list(meanwhile)
        self.asked: list[float] = []
        """How long each query may wait: the first one not at all."""
        self.given_up = 0
        self.index = 7

    def look(self, request: Request) -> Response:
        assert "consistent" in dict(request.params), "an old leader would show a hold that is over"
        keys = [op["KV"]["Key"] for op in json.loads(request.body or b"")]
        return txn_done(*(entry(key, index=self.index) for key in keys))

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        self.asked.append(request.hold_open)
        if request.hold_open:
            assert until is not None
            assert not until.is_set()
            self.meanwhile.pop(0)()
            if until.is_set():
                self.given_up += 1
                return None
            self._advance(self.time + request.hold_open)
        return ok([request.path.removeprefix("/v1/kv/")], index=self.index)


class Hiding(Server):
    """One whose answers show nothing, as the permission counts that there was when a query began."""

    hides = True

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        hides = self.hides
        answer = await super().changed(request, until=until, deadline=deadline)
        return ok([], index=self.index) if hides and answer is not None else answer


def test_a_change_that_a_query_has_hidden_shows_in_the_next_one() -> None:
    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    def change() -> None:
        io.hides = False
        io.index += 1

    io, folder, changed = Hiding(int, change, int), Folder("g/m"), Signal()
    together = Together(io, longest, timeout=10.0)
    folder.is_doubtful = True
    assert io.run(together.change(io, folder, until=None))
    folder.is_doubtful = False  # its follower has read that nothing is there
    folder.await_with(changed)
    io.meanwhile.append(folder.leave)
    io.run_spawned("changes of groups")
    assert changed.is_set()
    assert folder.at == io.index


def watched(io: Server, *held: Held) -> None:
    """Have holds watched until they are over."""

    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    together = Together(io, longest, timeout=10.0)
    for each in held:
        together.watch(each)
    io.expect("PUT", "/v1/txn", *[io.look] * 19)
    io.run_spawned("changes of groups")


@pytest.mark.usefixtures("more_than_asked")
def test_the_query_for_holds_ends_with_the_last_of_them() -> None:
    first, second = Held("g/m/a"), Held("g/m/b")
    io = Server(first.over.set, second.over.set)
    watched(io, first, second)
    assert io.meanwhile == []
    assert io.given_up == 1, "it went on after the first one, and was given up at the second"


@pytest.mark.usefixtures("more_than_asked")
def test_holds_are_looked_at_after_a_change_alone() -> None:
    hold = Held("g/m/a")

    def change() -> None:
        io.index += 1

    io = Server(int, int, change, int, hold.over.set)
    watched(io, hold)
    assert hold.readings == [7, 8]


@pytest.mark.parametrize("ended", [range(BATCH), range(BATCH, 2 * BATCH), range(1, 3 * BATCH - 1)])
@pytest.mark.usefixtures("more_than_asked")
def test_a_change_is_noticed_though_all_holds_that_are_looked_at_with_others_have_ended(ended: range) -> None:
    holds = [Held(f"g/m/{number}") for number in range(3 * BATCH)]
    live = [hold for number, hold in enumerate(holds) if number not in ended]

    def end_many_amid_a_change() -> None:
        for number in ended:
            holds[number].over.set()
        io.index += 1

    def end() -> None:
        for hold in live:
            hold.over.set()

    io = Server(end_many_amid_a_change, end)
    watched(io, *holds)
    assert [hold.readings for hold in live] == [[7, 8]] * len(live)


@pytest.mark.usefixtures("more_than_asked")
def test_while_a_hold_depends_on_them_queries_last_ever_longer() -> None:
    hold = Held("g/m/a")
    io = Server(*[int] * 6, hold.over.set)
    watched(io, hold)
    waits = io.asked[1:]
    assert waits[0] == pytest.approx(SHORTEST_QUERY, rel=0.1)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(LONGEST_HELD, rel=0.1)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.usefixtures("more_than_asked")
def test_a_hold_that_can_not_be_made_sure_of_is_looked_at_again_and_keeps_nobody_from_being_looked_at(
    times: int,
) -> None:
    first, second = Held("g/m/a"), Held("g/m/b")
    first.unsure.extend([unreachable()] * times)

    def end() -> None:
        first.over.set()
        second.over.set()

    io = Server(end)
    watched(io, first, second)
    assert first.readings == second.readings == [7] * (times + 1)
    assert io.time > 1000.0, "after a pause"


@pytest.mark.usefixtures("more_than_asked")
def test_a_hold_is_looked_at_though_a_whole_part_of_the_others_ends_meanwhile() -> None:
    before, meanwhile, hold = (
        [Held(f"g/m/{part}{number}") for number in range(count)]
        for part, count in (("a", BATCH), ("b", BATCH), ("c", 1))
    )

    class Ending(Server):
        def look(self, request: Request) -> Response:
            if self.index > 7:
                for each in meanwhile:
                    each.over.set()
            return super().look(request)

    def change() -> None:
        io.index += 1

    def end() -> None:
        for each in (*before, *hold):
            each.over.set()

    io = Ending(change, end)
    watched(io, *before, *meanwhile, *hold)
    assert [each.readings for each in (*before, *hold)] == [[7, 8]] * (BATCH + 1)
    assert [each.readings for each in meanwhile] == [[7]] * BATCH


@pytest.mark.usefixtures("more_than_asked")
def test_the_pauses_after_failures_grow_and_begin_anew_after_a_look_that_was_answered() -> None:
    hold = Held("g/m/a")
    hold.unsure.extend([unreachable()] * 4)

    def change() -> None:
        io.index += 1
        hold.unsure.extend([unreachable()] * 4)

    io = Server(change, hold.over.set)
    watched(io, hold)
    looks = [later - before for before, later in pairwise(hold.seen_at)]
    assert looks[:4] == looks[5:] == pytest.approx([FIRST * 2**n / 2 for n in range(4)])


class FailingFor(Server):
    """One that can't serve, or refuses, what is asked about one folder; it notes its looks at others."""

    def __init__(self, folder: str, error: Callable[[], ConsulCoordError], *, until: float) -> None:
        super().__init__()
        self.looks: list[float] = []
        self.over: list[Signal] = []
        self._folder, self._error, self._until = folder, error, until

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        if self.now() >= self._until:
            for over in self.over:
                over.set()
        if request.path.startswith(f"/v1/kv/{self._folder}/"):
            raise self._error()
        self.looks += [self.now(), self.now() + request.hold_open]
        self._advance(self.time + request.hold_open)
        return ok([request.path.removeprefix("/v1/kv/")], index=self.index)


@pytest.mark.parametrize("error", [unreachable, lambda: PermissionDenied("it may not be read")])
@pytest.mark.usefixtures("more_than_asked")
def test_a_folder_that_fails_again_and_again_keeps_no_other_one_waiting(
    error: Callable[[], ConsulCoordError],
) -> None:
    """Its own pauses grow; a change in another folder is noticed within a round all the same."""
    failing, other = Held("bad/m/a"), Held("good/m/a")
    io = FailingFor("bad", error, until=1120.0)
    io.over = [failing.over, other.over]
    watched(io, failing, other)
    assert io.looks[-1] > 1100.0
    assert max(later - before for before, later in pairwise(io.looks)) <= ROUND


class Refusing(Server):
    """One that refuses everything from the first query on."""

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        if request.hold_open or not self.meanwhile:
            self.meanwhile.clear()
            raise PermissionDenied("it may not be read any more")
        return await super().changed(request, until=until, deadline=deadline)


def test_a_follower_of_a_folder_that_may_not_be_read_any_more_is_sent_to_ask_by_itself() -> None:
    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    io, folder, changed = Refusing(int), Folder("g/m"), Signal()
    together = Together(io, longest, timeout=10.0)
    assert io.run(together.change(io, folder, until=None))
    folder.known, folder.is_doubtful = folder.at, False
    folder.await_with(changed)
    io.at(1060.0, folder.leave)
    io.run_spawned("changes of groups")
    assert changed.is_set()
    assert folder.is_doubtful


class RefusingOne(Server):
    """One that refuses a folder from its first query on, but nothing in that folder."""

    refused = "g/m"
    begun = False

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        path = request.path.removeprefix("/v1/kv/").rstrip("/")
        self.begun = self.begun or bool(request.hold_open)
        if self.begun and path == self.refused:
            raise PermissionDenied("it may not be listed any more")
        return await super().changed(request, until=until, deadline=deadline)


class Persistent(Folder):
    """A folder whose follower always comes back: it may read what it may not list."""

    gone = False

    def is_left(self, now: float) -> bool:
        return self.gone


@pytest.mark.parametrize("place", ["folder", "hold"])
@pytest.mark.usefixtures("more_than_asked")
def test_a_place_in_a_followed_folder_that_may_not_be_listed_any_more_is_noticed_all_the_same(
    place: str,
) -> None:
    async def longest(io: object, /, *, until: Signal | None) -> float:
        return 600.0

    def change() -> None:
        io.index = 12

    io, outer = RefusingOne(*[int] * 99), Persistent("g/m")
    inner, changed, hold = Folder("g/m/part"), Signal(), Held("g/m/key")
    together = Together(io, longest, timeout=10.0)
    for folder in [outer, inner] if place == "folder" else [outer]:
        assert io.run(together.change(io, folder, until=None))
        folder.known, folder.is_doubtful = folder.at, False
    inner.await_with(changed)
    if place == "hold":
        together.watch(hold)
        io.expect("PUT", "/v1/txn", *[io.look] * 19)
    else:
        io.expect("GET", "/v1/kv/g/m/part", *[lambda _: ok(["g/m/part"], index=io.index)] * 19)

    def end() -> None:
        inner.leave()
        outer.gone = True
        hold.over.set()

    io.at(1030.0, change)
    io.at(1040.0, end)
    io.run_spawned("changes of groups")
    assert outer.is_doubtful
    assert changed.is_set() if place == "folder" else hold.readings[-1] == 12


class Busy(Server):
    """One where something changes in a folder all the time, but not in its places."""

    def __init__(self, *, takes: float) -> None:
        super().__init__()
        self.takes = takes
        """Seconds until a query is answered."""
        self.queries: list[tuple[float, str]] = []
        """What was asked for, and when."""
        self.looks: list[float] = []

    def look(self, request: Request) -> Response:
        self.looks.append(self.time)
        self.expect("PUT", "/v1/txn", self.look)
        return super().look(request)

    async def changed(
        self, request: Request, *, until: Signal | None = None, deadline: float | None = None
    ) -> Response | None:
        self.queries.append((self.time, request.path.removeprefix("/v1/kv/").rstrip("/")))
        self._advance(self.time + (self.takes if request.hold_open else 0.0), until)
        if until is not None and until.is_set():
            return None
        return ok(["g/m/a"], index=100 + len(self.queries))


def ended(io: Busy, *, seconds: float) -> Busy:
    """Have two members watched for so long."""
    held = Held("g/m/a"), Held("g/m/b")
    for each in held:
        io.at(1000.0 + seconds, each.over.set)
    watched(io, *held)
    return io


@pytest.mark.usefixtures("more_than_asked")
def test_a_folder_that_changes_all_the_time_costs_a_few_requests_a_second() -> None:
    io = ended(Busy(takes=0.0), seconds=60.0)
    asked = Counter(path for at, path in io.queries if at >= 1030.0)
    assert max(asked.values()) <= 30 * 11
    assert len([at for at in io.looks if at >= 1030.0]) <= asked.total()


@pytest.mark.slow
@pytest.mark.usefixtures("more_than_asked")
def test_so_does_one_with_more_holds_than_one_request_looks_at() -> None:
    io, holds = Busy(takes=0.0), [Held(f"g/m/{number}") for number in range(5 * BATCH)]
    for each in holds:
        io.at(1060.0, each.over.set)
    watched(io, *holds)
    assert 0 < len([at for at in io.looks if at >= 1030.0]) <= 30 * LOOKS_PER_SECOND * 1.1


@pytest.mark.usefixtures("more_than_asked")
def test_a_folder_that_changes_in_vain_is_left_for_its_places_for_a_while() -> None:
    io = ended(Busy(takes=1.0), seconds=200.0)
    whole = [at for at, path in io.queries if path == "g/m"]
    apart = [at for at, path in io.queries if path in {"g/m/a", "g/m/b"}]
    gaps = [(before, later) for before, later in pairwise(whole) if later - before > 30.0]
    assert gaps, "it is not left"
    for before, later in gaps:
        assert later - before == pytest.approx(AVOIDED, abs=2 * ROUND)
        assert sum(before < at < later for at in apart) > AVOIDED / ROUND
    assert gaps[0][0] - 1000.0 == pytest.approx(IN_VAIN * 1.0, abs=2 * ROUND)


@pytest.mark.usefixtures("more_than_asked")
def test_a_folder_that_changes_seldom_is_asked_for_as_a_whole() -> None:
    io = ended(Busy(takes=ROUND * 1.5), seconds=200.0)
    assert {path for _, path in io.queries} == {"g/m"}
