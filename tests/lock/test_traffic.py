"""Who carries the traffic, and what is never written down: the users' own clients, and no token."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from typing import TYPE_CHECKING

import httpx
import pytest

from consul_coord import (
    AcquireTimeout,
    AsyncClient,
    AsyncLock,
    Client,
    ConfigError,
    ConsulCoordError,
    Lock,
    PermissionDenied,
)
from consul_coord.server import ReferenceServer, ServerConfig
from consul_coord.server.acl import AclConfig, Rule, Token
from tests.lock.conftest import spec
from tests.lock.test_hold import Notes
from tests.support.proxy import Fault, Lose
from tests.support.sites import Site

if TYPE_CHECKING:
    from tests.support.proxy import FaultProxy

TOKEN = "c0ffee00-dead-beef-cafe-000000000001"


def arrived(proxy: FaultProxy) -> Counter[str]:
    return Counter(each.path.split("?")[0] for each in proxy.requests)


def test_a_users_clients_carry_all_traffic(site: Site, proxy: FaultProxy) -> None:
    seen: list[str] = []

    async def note_later(request: httpx.Request) -> None:
        seen.append(request.url.path)

    foreground = httpx.Client(
        trust_env=False, event_hooks={"request": [lambda request: seen.append(request.url.path)]}
    )
    # Its connections live on the client's loop, where nobody else can close them: it keeps none.
    none_kept = httpx.Limits(max_keepalive_connections=0)
    background = httpx.AsyncClient(trust_env=False, limits=none_kept, event_hooks={"request": [note_later]})
    with foreground:
        client = Client(
            address=proxy.address,
            session=spec(site, ttl=1.0),
            http_client=foreground,
            background_http_client=background,
        )
        with client, Lock(client, site.key) as hold:
            assert not hold.lost.wait(0.6), "renewed by the background client"
            hold.put(b"value")
            assert hold.verify()
        assert not foreground.is_closed
    assert not arrived(proxy) - Counter(seen)
    assert any(path.startswith("/v1/session/renew") for path in seen)
    assert site.left_behind() == []


@pytest.mark.anyio
async def test_a_users_async_client_carries_all_traffic(site: Site, proxy: FaultProxy) -> None:
    seen: list[str] = []

    async def note(request: httpx.Request) -> None:
        seen.append(request.url.path)

    async with httpx.AsyncClient(trust_env=False, event_hooks={"request": [note]}) as mine:
        client = AsyncClient(address=proxy.address, session=spec(site), http_client=mine)
        async with client, AsyncLock(client, site.key) as hold:
            assert not await hold.lost.wait(0.15)
            await hold.put(b"value")
        assert not mine.is_closed
    assert not arrived(proxy) - Counter(seen)


def test_one_http_client_alone_is_refused() -> None:
    with httpx.Client() as one, pytest.raises(ConfigError, match="both"):
        Client(http_client=one)
    with pytest.raises(ConfigError, match="both"):
        Client(background_http_client=httpx.AsyncClient())


def provoke(client: Client, site: Site, proxy: FaultProxy) -> list[object]:
    """Make everything happen that is logged or raised; return what could be shown to somebody."""
    shown: list[object] = [client, client.stats()]
    lock = Lock(client, site.key)
    with lock.hold(timeout=5) as hold:
        shown += [lock, hold, hold.lost, hold.sequencer, lock.holder()]
        other = Client(address=proxy.address, token=TOKEN, session=spec(site))
        with other, pytest.raises(AcquireTimeout) as timeout:
            Lock(other, site.key).acquire(timeout=0.1)
        shown.append(timeout.value)
        proxy.add(Fault(lose=Lose.REPLY, path="/v1/txn", times=1))
        hold.put(b"value")
    for status, body in ((403, b"Permission denied"), (500, b"odd"), (400, b"bad")):
        proxy.add(Fault(lose=Lose.AGENT, status=status, body=body, times=100))
        with pytest.raises(ConsulCoordError) as refused:
            client.kv.put("k", b"v")
        shown.append(refused.value)
        proxy.clear()
    proxy.go_down()
    with pytest.raises(ConsulCoordError) as gone:
        lock.try_acquire()
    shown.append(gone.value)
    proxy.come_up()
    return shown


def texts(thing: object) -> list[str]:
    """Return all that can be read off a thing, of an error its causes too."""
    if isinstance(thing, BaseException):
        return [repr(thing), repr(vars(thing)), *traceback.format_exception(thing)]
    return [repr(thing), str(thing)]


@pytest.mark.slow
def test_a_token_is_sent_and_never_shown(
    site: Site, proxy: FaultProxy, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    notes = Notes()
    with caplog.at_level(logging.DEBUG):
        client = Client(address=proxy.address, token=TOKEN, session=spec(site), observer=notes, timeout=1.0)
        with client:
            shown = provoke(client, site, proxy)
    assert all(each.headers.get("X-Consul-Token") == TOKEN for each in proxy.requests)
    assert TOKEN not in "".join(each.path for each in proxy.requests)
    told = [text for thing in (*shown, *notes.events) for text in texts(thing)]
    told += [event.describe() for event in notes.events]
    told += [caplog.text, *capfd.readouterr()]
    assert len(notes.events) > 5
    assert not [text for text in told if TOKEN in text]


def test_a_token_without_permission_says_which_is_missing() -> None:
    rules = (Rule("session", "", "write", prefix=True), Rule("key", "", "read", prefix=True))
    acl = AclConfig(tokens={TOKEN: Token(rules)})
    with ReferenceServer(config=ServerConfig(acl=acl)) as server:
        site = Site.at("reference", server.address)
        with Client(address=site.address, token=TOKEN, session=spec(site)) as client:
            with pytest.raises(PermissionDenied, match="key:write") as told:
                Lock(client, "k").acquire(timeout=5)
            assert "key:write" in told.value.needed[0]
            assert TOKEN not in str(told.value)


def test_without_permission_for_the_queue_locks_still_exclude() -> None:
    rules = (
        Rule("session", "", "write", prefix=True),
        Rule("key", "k", "write"),
        Rule("key", "", "read", prefix=True),
    )
    acl = AclConfig(tokens={TOKEN: Token(rules)})
    with ReferenceServer(config=ServerConfig(acl=acl)) as server:
        site = Site.at("reference", server.address)
        with Client(address=site.address, token=TOKEN, session=spec(site)) as one:
            hold = Lock(one, "k").acquire(timeout=5)
            with Client(address=site.address, token=TOKEN, session=spec(site)) as two:
                lock = Lock(two, "k")
                with pytest.raises(AcquireTimeout) as told:
                    lock.acquire(timeout=1.0)
                assert told.value.blocker.kind == "held"
                hold.release()
                assert lock.acquire(timeout=5).fence > hold.fence


def test_who_may_only_read_is_told_who_holds_it_but_not_of_a_lock_delay() -> None:
    read = Rule("key", "k", "read")
    acl = AclConfig(tokens={TOKEN: Token(management=True), "reader": Token((read,))}, default_policy="deny")
    with (
        ReferenceServer(config=ServerConfig(acl=acl)) as server,
        Client(address=server.address, token=TOKEN) as owner,
        Client(address=server.address, token="reader") as reader,
    ):
        lock, seen = Lock(owner, "k"), Lock(reader, "k")
        with lock.hold(timeout=5) as hold:
            holder = seen.holder()
            assert holder is not None
            assert (holder.session, holder.node) == (hold.session, None)
            with pytest.raises(PermissionDenied, match="key:write"):
                seen.break_lock(hold.session)
        owner.session.destroy(lock.acquire(timeout=5).session)
        delayed = lock.holder()
        assert delayed is not None
        assert delayed.lock_delay_active
        assert seen.holder() is None
