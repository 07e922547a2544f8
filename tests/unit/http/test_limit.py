"""What a client makes of connections that an agent refuses."""

from __future__ import annotations

from consul_coord.http.transport.limit import REMEMBERED, Limit


def test_one_refusal_alone_is_not_reported() -> None:
    limit, reported = Limit(), list[float]()
    for now in (1000.0, 1001.0, 1002.0):
        limit.on_refusal = lambda now=now: reported.append(now)  # type: ignore[misc]
        limit.refused(now)
    assert reported == [1001.0, 1002.0]


def test_a_refusal_amid_connections_that_end_is_not_put_down_to_the_limit() -> None:
    limit, reported = Limit(), list[float]()
    limit.on_refusal = lambda: reported.append(1.0)
    limit.ended(1000.0)
    for _ in range(3):
        limit.refused(1001.0)
    assert reported == []
    limit.refused(1000.0 + REMEMBERED)
    assert reported == [1.0]
