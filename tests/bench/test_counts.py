"""What the lock may cost the agent and its own process: counts, which say the same on any machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench.contenders.ours import OursAsync, OursOverHttpx, OursSync
from bench.contenders.raw import RAW
from bench.counting import REQUEST, counting_proxy
from bench.measures import handoff
from bench.measures.counts import ENTRIES, REQUESTS, count
from bench.measures.held import hold

if TYPE_CHECKING:
    from bench.bed import Bed
    from bench.contenders.pairs import Pairs
    from bench.counting import Seen
    from bench.rounds import Contender

OURS: tuple[Contender[Pairs], ...] = (OursSync(), OursAsync(), OursOverHttpx())
HOLDS = 60


@pytest.mark.parametrize("contender", OURS, ids=lambda each: each.name)
def test_a_pair_is_two_requests_and_two_raft_entries(bed: Bed, contender: Contender[Pairs]) -> None:
    found = {figure.what: figure.value for figure in count(bed, contender, rounds=3)}
    # A renewal of the session may fall into a round.
    assert found[REQUESTS].p10 == 2 <= found[REQUESTS].p90 < 2.1
    # The server adds entries of its own now and then: never to most of the rounds.
    assert found[ENTRIES].median == 2


def operations(bed: Bed, contender: Contender[Pairs]) -> list[object]:
    """Return the operations of each request of the second pair, under one name for key and session."""
    with counting_proxy(bed) as (behind, counts), contender.open(behind) as pairs:
        pairs(1)
        since = len(counts.seen)
        pairs(1)
        return [anonymous(seen) for seen in counts.seen[since:] if seen.kind == REQUEST]


def anonymous(seen: Seen) -> object:
    assert (seen.method, seen.target) == ("PUT", "/v1/txn")
    ops = [op["KV"] for op in json.loads(seen.body)]
    text = json.dumps([{**op, "Index": op.get("Index", 0) > 0} for op in ops])
    key = min((op["Key"] for op in ops), key=len)
    session = next(op["Session"] for op in ops if "Session" in op)
    return json.loads(text.replace(key, "KEY").replace(session, "SESSION"))


def test_the_floor_sends_what_we_send(bed: Bed) -> None:
    floor = operations(bed, RAW)
    assert len(floor) == 2
    assert floor == operations(bed, OursSync())


@pytest.mark.parametrize(("world", "threads"), [("sync", 2), ("async", 1)])
def test_held_locks_need_no_threads_and_few_connections(bed: Bed, world: str, threads: int) -> None:
    found = hold(bed, world, HOLDS, rest=0.1)
    assert found.held.threads == threads
    assert 0 < found.connections <= 64


def test_raft_entries_per_handoff_are_few(bed: Bed) -> None:
    waiters = 5
    with handoff.OursAsync().open(bed) as chain:
        chain.prepare(waiters)
        index = bed.raft_index()
        times = chain.run(bed.key(), waiters)
        entries = bed.raft_index() - index
    assert len(times) == waiters
    assert entries / (waiters + 1) <= 3.5
