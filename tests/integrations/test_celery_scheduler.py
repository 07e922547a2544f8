"""The scheduler for ``celery beat``: several beats, of which one sends; the broker is a folder."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import LOCK_FLAGS, Client, SessionSpec, TxnOp, leader
from tests.election.waiting import until
from tests.integrations.programs import Served, serving
from tests.support.proxy import Fault, FaultProxy, Lose

celery = pytest.importorskip("celery", reason="needs celery: nox -s integrations")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PERIOD = 0.4
CONFIG = f"""
from consul_coord import SessionSpec
broker_url = "filesystem://"
broker_transport_options = dict(data_folder_in="queue", data_folder_out="queue", control_folder="control")
task_ignore_result = True
beat_max_loop_interval = 0.2
beat_schedule = {{
    "often": {{"task": "shop.often", "schedule": {PERIOD}}},
    "hourly": {{"task": "shop.hourly", "schedule": 3600.0}},
}}
consul_beat_key = "shop/beat"
consul_beat_client = dict(session=SessionSpec(ttl=1.0, lock_delay=1.0))
"""
SHOP = """
from celery import Celery
app = Celery("shop")
app.config_from_object("celeryconfig")
"""
BEAT = [sys.executable, "-m", "celery", "-A", "shop", "beat", "-S", "consul", "--pidfile=", "-l", "INFO"]


class Shop:
    """A folder with the application, and what its beats have sent."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        (folder / "shop.py").write_text(SHOP, encoding="utf-8")
        (folder / "celeryconfig.py").write_text(CONFIG, encoding="utf-8")
        (folder / "queue").mkdir()
        (folder / "control").mkdir()

    def sent(self, task: str = "shop.often") -> int:
        """Return how many messages of a task are in the queue."""
        messages = [path.read_text("utf-8") for path in (self.folder / "queue").iterdir()]
        return sum(f'"task": "{task}"' in message for message in messages)


@pytest.fixture
def shop(tmp_path: Path, agent_address: str) -> Shop:
    with Client(address=agent_address) as client:
        client.kv.delete_tree("shop/")
    return Shop(tmp_path, agent_address)


@pytest.fixture
def beat(shop: Shop) -> Iterator[Callable[[], Served]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(serving(BEAT, folder=shop.folder, address=shop.address))


def state(client: Client) -> dict[str, Any]:
    pair = client.kv.get("shop/beat/state").value
    found: dict[str, Any] = {} if pair is None else json.loads(pair.value)
    return found


def runs(client: Client) -> int:
    count: int = state(client)["entries"]["often"]["total_run_count"]
    return count


@pytest.mark.slow
def test_one_beat_sends_and_the_next_one_knows_when_each_task_ran(
    shop: Shop, beat: Callable[[], Served]
) -> None:
    with Client(address=shop.address) as client:
        first = beat()
        until(lambda: shop.sent() >= 3, "it goes on")
        second = beat()
        second.wait_for("beat: Starting")
        before = state(client)
        assert "leads, term" not in "".join(second.said)
        first.process.kill()
        second.wait_for("leads, term")
        until(lambda: state(client)["term"] > before["term"], "it goes on")
        counted = runs(client)
        until(lambda: runs(client) >= counted + 3, "it goes on")
        assert second.end() == 0, "".join(second.said)
        # The count goes on, and so does the hour that began with the first beat.
        after = state(client)["entries"]
        assert after["often"]["total_run_count"] > before["entries"]["often"]["total_run_count"]
        assert after["hourly"] == before["entries"]["hourly"]
        # Each run was written down before it was sent: the kill may have left one out.
        assert 0 <= runs(client) - shop.sent() <= 1
        assert shop.sent("shop.hourly") == 0
        assert leader(client, "shop/beat") is None


@pytest.mark.slow
def test_a_task_that_was_due_while_no_beat_ran_is_sent_once(shop: Shop, beat: Callable[[], Served]) -> None:
    with Client(address=shop.address) as client:
        long_ago = (datetime.now().astimezone() - timedelta(hours=5)).isoformat()
        saved = {"last_run_at": long_ago, "total_run_count": 7}
        client.kv.put("shop/beat/state", json.dumps({"entries": {"hourly": saved, "other version": saved}}))
        first = beat()
        until(lambda: shop.sent("shop.hourly") == 1, "it goes on")
        until(lambda: shop.sent() >= 2, "it goes on")
        assert first.end() == 0
        assert shop.sent("shop.hourly") == 1
        entries = state(client)["entries"]
        assert entries["hourly"]["total_run_count"] == 8
        assert entries["other version"] == saved


def waiting(client: Client) -> list[str]:
    """Return the places in the queue; the leader's note is kept beside them."""
    return [key for key in client.kv.keys("shop/beat/.wait/").value if not key.endswith("/term")]


@pytest.mark.slow
def test_who_does_not_lead_any_more_sends_nothing(shop: Shop, beat: Callable[[], Served]) -> None:
    """The leadership goes to somebody else, who says so; what is written under the old fence is refused."""
    with Client(address=shop.address) as client:
        first = beat()
        until(lambda: shop.sent() >= 2, "it goes on")
        leads = leader(client, "shop/beat")
        assert leads is not None
        usurper = client.session.create()
        client.txn(TxnOp.delete("shop/beat"), TxnOp.lock("shop/beat", usurper, flags=LOCK_FLAGS))
        first.wait_for("was not sent, since|lost|held by session")
        counted = runs(client)
        sent = shop.sent()
        until(lambda: waiting(client), "it waits for the leadership")
        assert runs(client) == counted
        assert sent <= shop.sent() <= counted
        client.kv.release("shop/beat", usurper, flags=LOCK_FLAGS)
        until(lambda: runs(client) > counted, "it goes on")
        assert first.end() == 0


@pytest.mark.parametrize("state_before", [base64.b64encode(b"nonsense"), b"[]", b'{"entries": [1]}'])
def test_an_invalid_state_is_replaced(shop: Shop, beat: Callable[[], Served], state_before: bytes) -> None:
    with Client(address=shop.address) as client:
        client.kv.put("shop/beat/state", state_before)
        first = beat()
        until(lambda: shop.sent() >= 1, "it goes on")
        assert first.end() == 0
        assert set(state(client)["entries"]) == {"often", "hourly"}


def test_a_state_that_could_not_be_written_is_written_later(agent_address: str) -> None:
    from consul_coord.integrations.celery import ConsulScheduler

    app = celery.Celery("shop", broker="memory://")
    with FaultProxy(agent_address) as proxy, Client(address=agent_address) as client:
        client.kv.delete_tree("shop/")
        app.conf.update(
            beat_schedule={"hourly": {"task": "shop.hourly", "schedule": 3600.0}},
            consul_beat_key="shop/beat",
            consul_beat_client={"address": proxy.address},
        )
        denied: dict[str, Any] = {"status": 403, "body": b"Permission denied"}
        fault = proxy.add(Fault(lose=Lose.AGENT, path="/v1/txn", containing=b'"shop/beat/state"', **denied))
        make: Any = ConsulScheduler
        scheduler = make(app)
        try:
            until(lambda: scheduler.tick() and fault.hit.is_set(), "it can't be written")
            assert client.kv.get("shop/beat/state").value is None
            scheduler.tick()
            assert "hourly" in state(client)["entries"]
        finally:
            scheduler.close()


def test_a_leading_beat_looks_again_before_its_lease_is_over(shop: Shop) -> None:
    from consul_coord.integrations.celery import WAIT, ConsulScheduler

    app = celery.Celery("shop", broker="memory://")
    lease = 9.5
    app.conf.update(
        beat_schedule={"hourly": {"task": "shop.hourly", "schedule": 3600.0}},
        consul_beat_key="shop/beat",
        consul_beat_client={"address": shop.address, "session": SessionSpec(ttl=10.0, lock_delay=10.0)},
    )
    make: Any = ConsulScheduler
    scheduler = make(app)
    try:
        pauses: list[float] = []

        def leads() -> bool:
            pauses.append(scheduler.tick())
            return len([pause for pause in pauses if pause]) > 1

        until(leads, "it leads, and has looked again")
        assert WAIT < max(pauses) <= lease
    finally:
        scheduler.close()


def test_a_signal_whose_exception_was_dropped_ends_the_beat_all_the_same(shop: Shop) -> None:
    """Celery's handler closes the scheduler, and raises: Python drops that while a finalizer runs."""
    from consul_coord.integrations.celery import ConsulScheduler

    app = celery.Celery("shop", broker="memory://")
    app.conf.update(
        consul_beat_key="shop/beat",
        consul_beat_client={"address": shop.address, "session": SessionSpec(ttl=1.0, lock_delay=1.0)},
    )
    make: Any = ConsulScheduler
    scheduler = make(app)
    scheduler.tick()
    scheduler.close()
    with pytest.raises(SystemExit):
        scheduler.tick()
