"""Every endpoint when nothing is wrong: the request is right, and the real agent's answer is understood.

What is hostile is measured against this.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord.http.messages import Retry
from consul_coord.models import ReadOptions, WriteOptions
from tests.wire.agents import told
from tests.wire.catalogue import ENDPOINTS, META, newer

if TYPE_CHECKING:
    from tests.wire.agents import ScriptedAgent
    from tests.wire.clients import Make

pytest_plugins = ["tests.wire.scripted"]
pytestmark = pytest.mark.timeout(20)

TOKEN = "b1gs3cret"


def test_requests_and_answers(make: Make, scripted: ScriptedAgent, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = make.client(token=TOKEN)
    for name, endpoint in ENDPOINTS.items():
        scripted.forget()
        scripted.in_turn(endpoint.reply, newer(endpoint.reply))
        assert endpoint.call(client) == endpoint.value, name
        assert endpoint.call(client) == endpoint.value, name
        for seen in scripted.requests:
            assert (seen.line, seen.body) == (endpoint.line, endpoint.body or b"")
            assert seen.headers["x-consul-token"] == TOKEN
            length = None if endpoint.body is None else str(len(endpoint.body))
            assert seen.headers.get("content-length") == length
            assert "transfer-encoding" not in seen.headers
            assert seen.headers["host"] == scripted.address.removeprefix("http://")
            assert seen.headers["accept-encoding"] == "identity"
        assert len(scripted.requests) == 2, name
    assert TOKEN not in caplog.text + repr(client)


PROGRAMS = {"kv.update", "session.named", "session.destroy_named"}
"""What is among the endpoints' methods, and makes several calls of those."""


def test_the_catalogue_is_whole(make: Make) -> None:
    client = make.client()
    families = ("kv", "session", "agent", "catalog", "health", "query", "status")
    offered = {
        f"{family}.{name}"
        for family in families
        for name in dir(getattr(getattr(client, "target", client), family))
        if not name.startswith(("_", "watch"))
    }
    assert {name.partition(",")[0] for name in ENDPOINTS if not name.startswith("txn")} == offered - PROGRAMS


def test_options_of_reads_and_writes(make: Make, scripted: ScriptedAgent) -> None:
    client = make.client()
    scripted.always(told([], META))
    place: Any = {"datacenter": "dc2", "namespace": "team a", "partition": "p"}
    client.kv.list("p/", options=ReadOptions(index=7, wait=0.5, **place))
    client.catalog.nodes(options=ReadOptions(consistency="stale", max_stale=2.5, near="_agent"))
    client.kv.list("p/", options=ReadOptions(consistency="consistent"))
    scripted.always(told(True))
    client.kv.delete("k", options=WriteOptions(**place))
    assert scripted.lines == [
        "GET /v1/kv/p/?recurse&dc=dc2&ns=team%20a&partition=p&index=7&wait=500ms",
        "GET /v1/catalog/nodes?near=_agent&stale&max_stale=2500ms",
        "GET /v1/kv/p/?recurse&consistent",
        "DELETE /v1/kv/k?dc=dc2&ns=team%20a&partition=p",
    ]


def test_every_class_of_retry_is_in_the_catalogue() -> None:
    assert {endpoint.retry for endpoint in ENDPOINTS.values()} == set(Retry)
