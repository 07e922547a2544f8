"""Hearing of changes in many places over one connection: the groups of a client.

A place is a folder that somebody follows, or the key of a hold.

Rules
- There is one blocking query at a time. It is for the folder that all places have in common, folded: its
  answer has a few bytes, whatever is in the folder.
- The answer says that something has changed, not where. So each place is looked at then: a folder by its
  index, which takes a few bytes, keys as many together as fit in a transaction. These looks are consistent,
  since an old one would hide a change for good.
- Places without a common folder take turns: each query lasts a part of ``ROUND``. So do the parts of a folder
  that the token may not list, or in which so much else changes that looking was in vain; that is forgotten
  after ``AVOIDED`` seconds.
- A query that waits is only given up when a place is added. It lasts no longer than the places have been the
  same, half a second at least: the agent goes on with a query that was given up.
- A folder whose follower does not wait is kept for ``LINGER`` seconds: the follower reads what has changed,
  and comes back. Changes are noted meanwhile. Later, its first wait begins with a look.
- Consul forgets after 15 minutes that something was deleted. So after a long silence a folder's index says
  nothing: all in it is to be read again.
- After a failure the present state is asked for, and each place is looked at.
"""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from consul_coord.errors import ConsulCoordError
from consul_coord.events import Retried
from consul_coord.http.backoff import LONGEST_PAUSE, delay
from consul_coord.http.blocking import Pace, next_index
from consul_coord.http.endpoints import kv
from consul_coord.http.failures import again, bare, retryable
from consul_coord.http.retry import send_once, wait_once
from consul_coord.io import OnDemand, Signal
from consul_coord.models import ReadOptions, Result
from consul_coord.models.reply import CONSISTENT
from consul_coord.recipes.watch.batch import BATCH, read_together
from consul_coord.recipes.watch.follow import WAIT, wait_of
from consul_coord.recipes.watch.places import LINGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from consul_coord.io import IO, Host
    from consul_coord.recipes.watch.follow import Longest
    from consul_coord.recipes.watch.places import Folder, Watched

    Path = tuple[str, ...]

ROUND: Final = 2.0
"""Seconds in which each of a few folders has its turn."""
SHORTEST_TURN: Final = 0.1
SHORTEST_QUERY: Final = 0.5
"""Seconds that a query lasts after a place was added; later ones last as long as none was."""
LONGEST_HELD: Final = 7.0
"""Seconds that a query lasts while there are holds: where the agent has no room, a release waits for it."""
IN_VAIN: Final = 8
"""If a folder changes so often within as many rounds, and no place in it does, its parts take turns."""
AVOIDED: Final = 60.0
LOOKS_PER_SECOND: Final = 100
LOOKS_AT_ONCE: Final = 100
UNSEEN: Final = -1


class _Cover:
    """One folder that is asked for, for all places in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.index = 0
        """To ask with; 0 for the present state, at once."""
        self.looked_at: tuple[int, bool] = (0, False)
        """The index by which its places were looked at, and whether names were shown; 0 for never."""
        self.in_vain: list[float] = []
        """When its places were looked at in vain, since one had changed."""
        self.failures = 0
        self.rests_until = -math.inf
        self.pace = Pace()

    def has(self, path: str) -> bool:
        """Return whether a place is in it."""
        return path == self.path or path.startswith(self.path + "/")


def covers_of(paths: Iterable[str], avoided: Callable[[str], bool]) -> Iterator[str]:
    """Return the fewest folders, or places, that all places are in, but never the root.

    A folder to avoid is left for its parts, beside itself where it is a place.
    """
    return map("/".join, _covers_of({tuple(path.split("/")) for path in paths}, 0, avoided))


def _covers_of(paths: set[Path], depth: int, avoided: Callable[[str], bool]) -> Iterator[Path]:
    parts: dict[Path, set[Path]] = {}
    for path in sorted(paths):
        parts.setdefault(path[: depth + 1], set()).add(path)
    for part in parts.values():
        pairs = zip(min(part), max(part), strict=False)
        common = tuple(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        avoid = avoided("/".join(common)) or not any(common)
        if common in part or not avoid:
            yield common
        if avoid:
            yield from _covers_of(part - {common}, len(common), avoided)


class Together:
    """The places of one client that share a query."""

    def __init__(self, host: Host, longest: Longest, *, timeout: float) -> None:
        """``longest`` says how long a query may last."""
        self._longest = longest
        self._timeout = timeout
        self._held: dict[Watched, int] = {}
        """Keys of holds, and the index at which each was seen last: UNSEEN, or 0 if it was gone."""
        self._folders: dict[Folder, None] = {}
        self._covers: dict[str, _Cover] = {}
        self._avoided: dict[str, float] = {}
        """Until when the parts of a folder take turns."""
        self._stirred = Signal()
        """Raised to end the query under way, because there is another place, or none."""
        self._grown_at = host.now()
        self._pace = Pace(interval=1 / LOOKS_PER_SECOND, burst=LOOKS_AT_ONCE)
        self._host = host
        self._program = OnDemand(host, self._run, has_work=self._has_places, name="changes of groups")

    # -- places

    def watch(self, watched: Watched) -> None:
        """Watch a key of a hold until that is over."""
        self._held[watched] = UNSEEN
        watched.over.subscribe(self._end_if_idle)
        self._stir()

    async def change(self, io: IO, folder: Folder, *, until: Signal | None) -> bool:
        """Wait until there is something to read in a folder; returns False when ``until`` was raised.

        Raises what a look at it raises.
        """
        mine = Signal()
        folder.await_with(mine)
        unsubscribe = None if until is None else until.subscribe(mine.set)
        try:
            if folder not in self._folders:
                self._folders[folder] = None
                if not any(cover.has(folder.path) for cover in list(self._covers.values())):
                    self._stir()
                self._program.start()
                await self._look_into(io, [folder], until=mine)
            if not folder.is_new:
                await io.wait(mine)
        finally:
            if unsubscribe is not None:
                unsubscribe()
            if until is not None and until.is_set():
                folder.leave()
                self._end_if_idle()
        return until is None or not until.is_set()

    def _stir(self) -> None:
        self._grown_at = self._host.now()
        self._stirred.set()
        self._program.start()

    def _has_places(self) -> bool:
        return bool(self._held or self._folders)

    def _end_if_idle(self) -> None:
        """End the query under way when nobody needs it."""
        if not self._is_needed():
            self._stirred.set()

    def _is_needed(self) -> bool:
        return any(not watched.over.is_set() for watched in list(self._held)) or any(
            folder.is_waited_for for folder in list(self._folders)
        )

    # -- the program

    async def _run(self, io: IO) -> None:
        while self._tidy(io.now()):
            # Whoever raises the old one before this line is in the covers; later ones raise the new one.
            stirred = self._stirred = Signal()
            covers = self._cover(io.now())
            turn = math.inf if len(covers) == 1 else max(SHORTEST_TURN, ROUND / len(covers))
            for cover in covers:
                if not stirred.is_set():
                    await self._have_turn(io, cover, turn, stirred)

    def _tidy(self, now: float) -> bool:
        """Forget the places that nobody needs any more; return whether there are others."""
        for watched in [each for each in list(self._held) if each.over.is_set()]:
            self._held.pop(watched, None)
        for folder in [each for each in list(self._folders) if each.is_left(now)]:
            self._folders.pop(folder, None)
            if folder.is_waited_for:  # its follower came back meanwhile, and may have found it still here
                self._folders[folder] = None
        if not self._has_places():
            self._covers = {}
        return self._has_places()

    def _cover(self, now: float) -> list[_Cover]:
        self._avoided = {path: until for path, until in self._avoided.items() if now < until}
        paths = covers_of(self._paths(), self._avoided.__contains__)
        self._covers = {path: self._covers.get(path) or _Cover(path) for path in paths}
        return list(self._covers.values())

    def _paths(self) -> set[str]:
        return {*(watched.key for watched in list(self._held)), *(each.path for each in list(self._folders))}

    def _held_in(self, cover: _Cover) -> list[Watched]:
        return [each for each in list(self._held) if cover.has(each.key)]

    async def _have_turn(self, io: IO, cover: _Cover, turn: float, stirred: Signal) -> None:
        """Wait for a change in a folder, and look at the places in it."""
        if io.now() < cover.rests_until:
            await io.wait(stirred, deadline=min(cover.rests_until, io.now() + turn))
            return
        try:
            if cover.index:  # otherwise all are looked at in a moment
                await self._look_at(io, [each for each in self._held_in(cover) if self._held[each] == UNSEEN])
            answer = await self._ask(io, cover, turn, stirred)
            if answer is not None:
                await self._take(io, cover, answer)
        except ConsulCoordError as error:
            self._failed(io, cover, error)
        else:
            cover.failures = 0

    async def _ask(
        self, io: IO, cover: _Cover, turn: float, stirred: Signal
    ) -> Result[tuple[str, ...]] | None:
        cover.pace, pause = cover.pace.take(io.now(), io.random())
        if pause:
            await io.sleep(pause)
        options = None
        if cover.index:
            longest = min(turn, await self._longest(io, until=stirred))
            longest = min(longest, max(SHORTEST_QUERY, io.now() - self._grown_at))
            if not self._is_needed():
                longest = min(longest, LINGER)
            if stirred.is_set():
                return None
            wait = wait_of(longest, most=LONGEST_HELD if self._held else WAIT)
            options = ReadOptions(index=cover.index, wait=wait)
        return await wait_once(io, kv.keys(cover.path, separator="/", options=options), until=stirred)

    async def _take(self, io: IO, cover: _Cover, answer: Result[tuple[str, ...]]) -> None:
        """Look at the places of a folder, if it has changed."""
        # The names may be hidden by the permission at the beginning of the query. So the index counts, and
        # names that show at an index which showed none before.
        seen = answer.index, bool(answer.value)
        folders = [folder for folder in list(self._folders) if cover.has(folder.path)]
        if seen == cover.looked_at:
            for folder in folders:
                folder.hear(folder.at, io.now())
        else:
            before = [folder.at for folder in folders]
            for folder in folders:
                if folder.path == cover.path:
                    folder.hear(answer.index if answer.value else 0, io.now())
            found = await self._look_at(io, self._held_in(cover))
            await self._look_into(io, [folder for folder in folders if folder.path != cover.path])
            self._judge(io, cover, useful=found or before != [folder.at for folder in folders])
        cover.looked_at, cover.index = seen, next_index(cover.index, answer.index)

    def _judge(self, io: IO, cover: _Cover, *, useful: bool) -> None:
        """Take note of whether a change of a folder was one of a place in it."""
        cover.in_vain = [] if useful else [*cover.in_vain, io.now()][-IN_VAIN:]
        often = len(cover.in_vain) == IN_VAIN and io.now() < cover.in_vain[0] + IN_VAIN * ROUND
        if often:
            self._avoided[cover.path] = io.now() + AVOIDED

    def _failed(self, io: IO, cover: _Cover, error: ConsulCoordError) -> None:
        cover.index, cover.looked_at = 0, (0, False)
        if retryable(error):
            io.emit(Retried("GET", f"/v1/kv/{cover.path}", f"{type(error).__name__}: {error}"))
        else:
            self._avoided[cover.path] = io.now() + AVOIDED
            # Whoever follows it asks by itself then, and learns why.
            for folder in list(self._folders):
                if folder.path == cover.path:
                    folder.is_doubtful = True
                    folder.hear(folder.at, io.now())
        cover.failures += 1
        cover.rests_until = io.now() + delay(cover.failures, io.random(), most=LONGEST_PAUSE)

    # -- looks

    async def _rest(self, io: IO, until: Signal | None = None) -> None:
        self._pace, pause = self._pace.take(io.now(), io.random())
        if pause:
            await io.wait(Signal() if until is None else until, deadline=io.now() + pause)

    async def _look_at(self, io: IO, held: list[Watched]) -> bool:
        """Read keys of holds; returns whether one has changed. Raises what can't be made sure of now."""
        changed, problem = False, None
        for start in range(0, len(held), BATCH):
            part = [each for each in held[start : start + BATCH] if not each.over.is_set()]
            if not part:
                continue
            await self._rest(io)
            keys = list(dict.fromkeys(each.key for each in part))
            found = await read_together(io, keys, deadline=io.now() + self._timeout, options=CONSISTENT)
            for each in part:
                pair = found.get(each.key)
                index = 0 if pair is None else pair.modify_index
                changed = changed or self._held[each] != index
                try:
                    await each.seen(io, Result(pair), consistent=False)
                except ConsulCoordError as error:
                    problem = bare(error)
                else:
                    self._held[each] = index
        if problem is not None:
            raise again(problem)
        return changed

    async def _look_into(self, io: IO, folders: list[Folder], *, until: Signal | None = None) -> None:
        """Ask for the index of folders. Raises what that raises, once all were asked."""
        by_path: dict[str, list[Folder]] = {}
        for folder in folders:
            by_path.setdefault(folder.path, []).append(folder)
        problem = None
        for path, followed in by_path.items():
            await self._rest(io, until)
            call = kv.keys(path, separator="/", options=CONSISTENT)
            found: Result[tuple[str, ...]] | None
            try:
                if until is None:
                    found = await send_once(io, call, deadline=io.now() + self._timeout)
                else:
                    found = await wait_once(io, call, until=until)
            except ConsulCoordError as error:
                if until is not None or retryable(error):
                    problem = bare(error)
                    continue
                for folder in followed:
                    folder.is_doubtful = True  # whoever follows it asks by itself, and learns why
                found = Result((), followed[0].at)
            if found is not None:
                for folder in followed:
                    folder.hear(found.index if found.value else 0, io.now())
        if problem is not None:
            raise again(problem)
