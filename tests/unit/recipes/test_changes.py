"""Changes are told to everybody who watches, once, and to nobody else."""

from __future__ import annotations

from consul_coord.recipes.contend.changes import Changes


def test_everybody_who_watches_is_told() -> None:
    changes = Changes()
    with changes.watching() as one, changes.watching() as two:
        assert not one.is_set()
        changes.tell()
        assert one.is_set()
        assert two.is_set()


def test_a_change_before_or_after_is_not_told() -> None:
    changes = Changes()
    changes.tell()
    with changes.watching() as signal:
        assert not signal.is_set()
    changes.tell()
    assert not signal.is_set()


def test_who_is_told_may_watch_again_at_once() -> None:
    changes = Changes()
    told = []
    with changes.watching() as first:

        def again() -> None:
            with changes.watching() as second:
                told.append(second)

        first.subscribe(again)
        changes.tell()
    assert len(told) == 1
    assert not told[0].is_set()
