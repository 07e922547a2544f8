"""Short words for the records that the tests of histories are made of."""

from __future__ import annotations

from consul_coord.testing.history import Record


def happened(at: float, kind: str, who: str = "p1/a", **rest: object) -> Record:
    """Return a record of `who`, ``process/actor``, on the key ``k`` unless told otherwise."""
    process, _, actor = who.partition("/")
    fields: dict[str, object] = {"key": "k" if actor else "", **rest}
    return Record(at=at, process=process, actor=actor, kind=kind, **fields)  # type: ignore[arg-type]


def held(began: float, ended: float, fence: int, who: str = "p1/a", **rest: object) -> list[Record]:
    """Return the two records of a hold that was released."""
    return [
        happened(began, "acquired", who, fence=fence, **rest),
        happened(ended, "released", who, fence=fence, **rest),
    ]


def in_order(*histories: list[Record]) -> list[Record]:
    """Return several histories as one, by time."""
    return sorted((record for history in histories for record in history), key=lambda record: record.at)
