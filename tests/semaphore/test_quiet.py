"""A permit of a semaphore where nothing happens: it costs what a lock does, and each loss is noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from consul_coord import Client, HoldState, Semaphore, SessionSpec
from consul_coord.recipes.watch import engine
from consul_coord.server import ReferenceServer
from consul_coord.server.acl import AclConfig, Rule, Token
from tests.semaphore.conftest import CONFIG, Place, spec
from tests.semaphore.test_loss import DEEDS
from tests.support.proxy import FaultProxy
from tests.support.sites import Site, eventually
from tests.support.stalls import lasting

if TYPE_CHECKING:
    from tests.semaphore.conftest import MakeClient

SOON = 0.3
"""Seconds after which a permit counts as quiet here."""
TTL = 2.0
ROUND = 0.4 * TTL
"""Seconds from one renewal to the next."""
TOKEN = "c0ffee00-dead-beef-cafe-000000000007"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LONGEST_HELD", SOON)


def queries(proxy: FaultProxy, place: Place) -> list[str]:
    """Return the readings of the semaphore's keys that have passed, in short."""
    return [
        "all" if "recurse" in each.path else "record" if "/.lock" in each.path else "own"
        for each in list(proxy.requests)
        if each.method == "GET" and f"/{place.prefix}/" in each.path
    ]


def is_quiet(proxy: FaultProxy, place: Place) -> bool:
    return queries(proxy, place)[-2:] == ["all", "all"]


@pytest.fixture
def semaphore(make_client: MakeClient, proxy: FaultProxy, place: Place) -> Semaphore:
    client = make_client(address=proxy.address, ttl=TTL)
    return Semaphore(client, place.prefix, 2)


@pytest.mark.slow
def test_it_costs_one_query_for_each_renewal(semaphore: Semaphore, proxy: FaultProxy, place: Place) -> None:
    with semaphore.hold(timeout=5) as permit:
        assert eventually(lambda: is_quiet(proxy, place))
        renew, before = f"/v1/session/renew/{permit.session}", len(proxy.requests)
        renewed = proxy.count("PUT", renew)
        assert not permit.lost.wait(6 * ROUND)
        renewals = proxy.count("PUT", renew) - renewed
        asked = queries(proxy, place)[-(len(proxy.requests) - before) :]
    assert renewals >= 4
    assert set(asked[-renewals:]) == {"all"}
    # A query lasts SOON here, where it would last until the next renewal.
    assert len([one for one in asked if one == "all"]) <= (renewals + 1) * (ROUND / SOON + 1)


@pytest.mark.parametrize("deed", DEEDS)
def test_each_loss_is_noticed_at_once(
    semaphore: Semaphore, proxy: FaultProxy, place: Place, deed: str
) -> None:
    act, reason = DEEDS[deed]
    permit = semaphore.acquire(timeout=5)
    assert eventually(lambda: is_quiet(proxy, place))
    with lasting(most=0.25, calls=2):
        act(place, permit)
        assert permit.lost.wait(5)
    assert (permit.state, permit.reason) == (HoldState.LOST, reason)


def test_where_others_come_and_go_its_own_key_is_watched_again(
    semaphore: Semaphore, proxy: FaultProxy, place: Place
) -> None:
    with semaphore.hold(timeout=5):
        assert eventually(lambda: is_quiet(proxy, place))
        place.foreign()
        assert eventually(lambda: queries(proxy, place)[-1] == "own")
        assert eventually(lambda: is_quiet(proxy, place)), "for a while"


@pytest.mark.slow
def test_a_crowd_is_not_listed_again_and_again(
    semaphore: Semaphore, proxy: FaultProxy, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MOST_BELOW", 2)
    place.foreign()
    with semaphore.hold(timeout=5) as permit:
        assert eventually(lambda: queries(proxy, place).count("all") == 2)
        assert not permit.lost.wait(10 * SOON)
        asked = queries(proxy, place)
    assert asked.count("all") <= 4
    assert asked.count("record") > asked.count("all")


@pytest.mark.slow
def test_what_the_token_may_not_read_any_more_is_no_loss() -> None:
    anything, session = Rule("key", "", "write", prefix=True), Rule("session", "", "write", prefix=True)
    tokens = {TOKEN: Token((session, anything))}
    config = replace(CONFIG, acl=AclConfig(tokens=tokens))
    with ReferenceServer(config=config) as server, FaultProxy(server.address) as proxy:
        place = Place(Site.at("reference", server.address))
        with Client(address=proxy.address, token=TOKEN, session=spec(place.site, ttl=TTL)) as client:
            permit = Semaphore(client, place.prefix, 2, session=SessionSpec(ttl=TTL)).acquire(timeout=5)
            assert eventually(lambda: is_quiet(proxy, place))
            tokens[TOKEN] = Token((session, Rule("key", "other", "write", prefix=True)))
            assert not permit.lost.wait(6 * ROUND)
            tokens[TOKEN] = Token((session, anything))
            assert permit.verify()
            permit.release()
