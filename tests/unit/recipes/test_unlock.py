"""Unlocking: bound to an index, repeated until answered, and truthful about what it found."""

from __future__ import annotations

import json

import pytest

from consul_coord.errors import BrokenReply, ConnectFailed, PermissionDenied
from consul_coord.models import LOCK_FLAGS, KVPair, LossReason
from consul_coord.recipes.cleanup.unlock import Locked, Unlocked, unlock, unlock_together
from consul_coord.recipes.hold.grant import loss_of
from tests.support.fake_io import FakeIO
from tests.support.replies import (
    OTHER,
    SESSION,
    entry,
    lost,
    pairs,
    refusal,
    txn_done,
    txn_failed,
    unreachable,
)

STALE = txn_failed((0, "failed index check for key: current modify index 9 != 7"))
DONE = txn_done(entry("k", session=None, index=8), entry("k", session=None, index=8))


@pytest.fixture
def io() -> FakeIO:
    return FakeIO()


def unlocked(
    io: FakeIO, *, index: int = 7, value: bytes = b"v", deadline: float = 5.0, uncertain: bool = False
) -> Unlocked:
    return io.run(
        unlock(
            io,
            Locked("k", index, value),
            session=SESSION,
            flags=LOCK_FLAGS,
            deadline=io.time + deadline,
            uncertain=uncertain,
        )
    )


def ops(io: FakeIO, number: int) -> list[dict[str, object]]:
    return [each["KV"] for each in json.loads(io.requests[number].body or b"")]


def test_one_transaction_bound_to_the_index_with_value_and_flags(io: FakeIO) -> None:
    io.expect("PUT", "/v1/txn", DONE)
    assert unlocked(io).ours
    assert ops(io, 0) == [
        {"Verb": "check-index", "Key": "k", "Index": 7},
        {"Verb": "unlock", "Key": "k", "Value": "dg==", "Flags": LOCK_FLAGS, "Session": SESSION},
    ]


def test_a_strangers_write_moves_the_index_and_its_value_is_kept(io: FakeIO) -> None:
    io.expect("PUT", "/v1/txn", STALE)
    io.expect("GET", "/v1/kv/k", pairs(entry("k", index=9, value=b"theirs")))
    io.expect("PUT", "/v1/txn", DONE)
    assert unlocked(io).ours
    check, release = ops(io, 2)
    assert check["Index"] == 9
    assert release["Value"] == "dGhlaXJz"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (pairs(), LossReason.KEY_DELETED),
        (pairs(entry("k", session=None, index=9)), LossReason.RELEASED_BY_OTHER),
        (pairs(entry("k", session=OTHER, index=9)), LossReason.TAKEN_OVER),
    ],
)
def test_not_ours_any_more_is_told_with_its_reason(io: FakeIO, found: object, reason: LossReason) -> None:
    io.expect("PUT", "/v1/txn", STALE)
    io.expect("GET", "/v1/kv/k", found)  # type: ignore[arg-type]
    what = unlocked(io)
    assert not what.ours
    assert loss_of(SESSION, what.pair) is reason
    assert ("consistent", "") in io.requests[1].params


@pytest.mark.parametrize("trouble", [lost(), refusal(500, "odd"), refusal(500, "No cluster leader")])
@pytest.mark.parametrize(
    "found", [pairs(), pairs(entry("k", session=None, index=8)), pairs(entry("k", session=OTHER, index=9))]
)
def test_a_lost_reply_and_then_not_ours_means_released(io: FakeIO, trouble: object, found: object) -> None:
    io.expect("PUT", "/v1/txn", trouble, STALE)  # type: ignore[arg-type]
    io.expect("GET", "/v1/kv/k", found)  # type: ignore[arg-type]
    assert unlocked(io).ours


@pytest.mark.parametrize("trouble", [unreachable(), refusal(429)])
def test_what_was_never_applied_proves_nothing(io: FakeIO, trouble: object) -> None:
    io.expect("PUT", "/v1/txn", trouble, STALE)  # type: ignore[arg-type]
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=OTHER, index=9)))
    found = unlocked(io)
    assert not found.ours
    assert loss_of(SESSION, found.pair) is LossReason.TAKEN_OVER


def test_who_is_told_that_an_unlock_got_no_answer_believes_in_it(io: FakeIO) -> None:
    io.expect("PUT", "/v1/txn", STALE)
    io.expect("GET", "/v1/kv/k", pairs(entry("k", session=None, index=9)))
    assert unlocked(io, uncertain=True).ours


def test_a_lost_request_is_repeated_at_the_same_index(io: FakeIO) -> None:
    io.expect("PUT", "/v1/txn", lost(), lost(), DONE)
    assert unlocked(io).ours
    assert ops(io, 0) == ops(io, 2)


@pytest.mark.usefixtures("more_than_asked")
def test_no_answer_by_the_deadline_raises_the_last_failure(io: FakeIO) -> None:
    io.expect("PUT", "/v1/txn", *[unreachable()] * 50)
    with pytest.raises(ConnectFailed):
        unlocked(io, deadline=3.0)
    assert io.time < 1003.0


@pytest.mark.usefixtures("more_than_asked")
def test_no_answer_from_the_read_either(io: FakeIO) -> None:
    io.expect("PUT", "/v1/txn", STALE)
    io.expect("GET", "/v1/kv/k", *[lost("/v1/kv/k", method="GET")] * 50)
    io.expect("PUT", "/v1/txn", *[lost()] * 50)
    with pytest.raises(BrokenReply):
        unlocked(io, deadline=3.0)
    assert io.time <= 1003.0


def test_a_refusal_is_raised_at_once(io: FakeIO) -> None:
    io.expect("PUT", "/v1/txn", refusal(403, "Permission denied"))
    with pytest.raises(PermissionDenied):
        unlocked(io)
    assert io.time == 1000.0


@pytest.mark.usefixtures("more_than_asked")
def test_a_key_that_is_written_again_and_again_is_not_asked_for_in_a_tight_loop(io: FakeIO) -> None:
    for index in range(9, 400):
        io.expect("PUT", "/v1/txn", STALE)
        io.expect("GET", "/v1/kv/k", pairs(entry("k", index=index)))
    with pytest.raises(Exception, match=r"."):
        unlocked(io, deadline=5.0)
    assert len(io.requests) < 100


@pytest.mark.parametrize(("first", "ours"), [(lost(), True), (unreachable(), False)], ids=repr)
def test_keys_that_are_found_free_were_ours_only_if_an_earlier_try_may_have_freed_them(
    io: FakeIO, first: Exception, *, ours: bool
) -> None:
    io.expect("PUT", "/v1/txn", first, STALE)
    for key in ("a", "b"):
        io.expect("PUT", "/v1/txn", STALE)
        io.expect("GET", f"/v1/kv/{key}", pairs(entry(key, session=None, index=9)))
    found = io.run(
        unlock_together(
            io,
            [Locked("a", 7, b""), Locked("b", 7, b"")],
            session=SESSION,
            flags=LOCK_FLAGS,
            deadline=io.time + 5.0,
        )
    )
    assert [each.ours for each in found] == [ours, ours]


@pytest.mark.parametrize(
    ("value", "flags", "remove"), [(b"v", LOCK_FLAGS, True), (b"other", LOCK_FLAGS, False), (b"v", 0, False)]
)
def test_a_key_that_somebody_else_wrote_to_is_kept(value: bytes, flags: int, *, remove: bool) -> None:
    pair = KVPair("k", value=value, flags=flags, modify_index=9)
    found = Locked("k", 7, b"v", remove=True).found(pair, LOCK_FLAGS)
    assert (found.index, found.value, found.remove) == (9, value, remove)
