"""Finding sessions by name, and cleaning up those whose processes are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from consul_coord import AsyncClient, Client, InvalidArgument, Lock, SessionSpec
from tests.lock.conftest import spec
from tests.support.sites import Operator

if TYPE_CHECKING:
    from tests.lock.conftest import MakeClient
    from tests.support.sites import Site


def left_by_somebody(site: Site, name: str) -> str:
    """Return a session that nobody renews, as of a process that is gone."""
    return str(
        Operator(site.address).done("PUT", "/v1/session/create", {"Name": name, "LockDelay": "0s"})["ID"]
    )


def test_sessions_are_found_by_the_name_they_were_given(site: Site, client: Client) -> None:
    hold = Lock(client, site.key).acquire(timeout=5)
    (found,) = client.session.named(site.unique)
    assert found.id == hold.session
    assert found.name.startswith(f"{site.unique} #")
    assert client.session.named(found.name) == (found,)
    assert client.session.named(f"{site.unique[:-1]}?") == (found,)
    assert client.session.named(f"no {site.unique}") == ()


def test_no_two_sessions_have_one_name(site: Site, client: Client, make_client: MakeClient) -> None:
    holds = [
        Lock(each, f"{site.key}/{number}").acquire() for number, each in enumerate((client, make_client()))
    ]
    own = Lock(client, f"{site.key}/own", session=spec(site)).acquire(timeout=5)
    names = {session.name for session in client.session.named(site.unique)}
    assert len(names) == len([*holds, own])


def test_stale_ones_are_destroyed_and_own_ones_spared(site: Site, client: Client) -> None:
    hold = Lock(client, site.key).acquire(timeout=5)
    stale, other = left_by_somebody(site, site.unique), left_by_somebody(site, f"{site.unique} other")
    site.operator.put(f"{site.key}/stale", b"", acquire=stale)
    assert [session.id for session in client.session.destroy_named(site.unique)] == [stale]
    assert not site.operator.exists(stale)
    assert site.operator.holder(f"{site.key}/stale") is None
    assert site.operator.exists(other)
    assert hold.verify()
    assert client.session.destroy_named(site.unique) == ()
    site.operator.destroy(other)


def test_sessions_without_a_name_are_nobodys_to_destroy(site: Site, client: Client) -> None:
    nameless = left_by_somebody(site, "")
    with pytest.raises(InvalidArgument, match="name"):
        client.session.destroy_named("")
    assert site.operator.exists(nameless)
    site.operator.destroy(nameless)


def test_a_session_of_the_users_own_making_keeps_its_name(site: Site, client: Client) -> None:
    session = client.session.create(SessionSpec(name=site.unique))
    assert [each.name for each in client.session.named(site.unique)] == [site.unique]
    client.session.destroy(session)


@pytest.mark.anyio
async def test_on_an_event_loop(site: Site) -> None:
    stale = left_by_somebody(site, site.unique)
    async with AsyncClient(address=site.address) as client:
        assert [session.id for session in await client.session.named(site.unique)] == [stale]
        assert [session.id for session in await client.session.destroy_named(site.unique)] == [stale]
        assert await client.session.named(site.unique) == ()
