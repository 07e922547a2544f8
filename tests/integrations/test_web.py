"""The pages on web servers: gunicorn, uvicorn and FastAPI, each served for real."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import Client, Lock, leader
from tests.integrations import pages
from tests.integrations.programs import PATIENCE, eventually, serving

if TYPE_CHECKING:
    from pathlib import Path

KEY = "service/shop/leader"
ORDERS = "service/orders/leader"


def page_into(folder: Path, page: str, *names: str) -> None:
    for name, block in zip(names, pages.blocks(page, "python"), strict=False):
        (folder / name).write_text(block, encoding="utf-8")


@pytest.mark.skipif(not importlib.util.find_spec("gunicorn"), reason="needs gunicorn: nox -s integrations")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--preload"], id="sync workers, preloaded"),
        pytest.param(["--worker-class", "gthread", "--threads", "2"], id="gthread workers"),
    ],
)
def test_one_of_gunicorns_workers_leads_and_another_takes_over(
    address: str, tmp_path: Path, options: list[str]
) -> None:
    page_into(tmp_path, "web-workers", "shop.py", "gunicorn.conf.py")
    with Client(address=address) as client:
        before = {session.id for session in client.session.list().value}
        command = [
            sys.executable,
            "-m",
            "gunicorn",
            "shop:app",
            "--bind",
            "127.0.0.1:0",
            "--workers",
            "2",
            *options,
        ]
        with serving(command, folder=tmp_path, address=address) as server:

            def leading_worker() -> dict[str, Any] | None:
                _, role = server.ask("/")
                return role if role["leader"] else None

            first = eventually(leading_worker)
            assert first["pid"] != server.process.pid
            os.kill(first["pid"], signal.SIGTERM)
            second = eventually(lambda: other_than(first["pid"], leading_worker()))
            assert second["term"] > first["term"]
            assert server.end() == 0, "".join(server.said)
        assert leader(client, KEY) is None
        assert {session.id for session in client.session.list().value} <= before


def other_than(pid: int, role: dict[str, Any] | None) -> dict[str, Any] | None:
    return role if role is not None and role["pid"] != pid else None


@pytest.mark.slow
def test_of_two_uvicorn_workers_one_leads(address: str, tmp_path: Path) -> None:
    page_into(tmp_path, "fastapi", "shop.py")
    with Client(address=address) as client:
        before = {session.id for session in client.session.list().value}
        command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", "0", "--workers", "2"]
        with serving(command, folder=tmp_path, address=address) as server:
            settled = eventually(lambda: accepted(server.ask("/settle", method="POST")))
            now = leader(client, ORDERS)
            assert now is not None
            assert settled == {"term": now.term}
            assert server.ask("/healthz") == (200, {"healthy": True})
            server.end()
        assert leader(client, ORDERS) is None
        assert {session.id for session in client.session.list().value} <= before


def accepted(reply: tuple[int, Any]) -> Any | None:
    status, body = reply
    assert status in (200, 421), body
    return body if status == 200 else None


@pytest.mark.slow
def test_fastapi_leads_locks_and_resigns(address: str, tmp_path: Path) -> None:
    page_into(tmp_path, "fastapi", "shop.py")
    command = [sys.executable, "-m", "uvicorn", "shop:app", "--port", "0"]
    with (
        Client(address=address) as client,
        serving(command, folder=tmp_path, address=address) as server,
    ):
        status, shipped = server.ask("/orders/7/ship", method="POST")
        assert (status, shipped["fence"] > 0) == (200, True)
        with Lock(client, "orders/8").hold(timeout=PATIENCE):
            assert server.ask("/orders/8/ship", method="POST") == (
                409,
                {"detail": "another request is on it"},
            )
        settled = eventually(lambda: accepted(server.ask("/settle", method="POST")))
        # Somebody else takes the leadership by force: what the application writes then is refused.
        now = leader(client, ORDERS)
        assert now is not None
        assert now.term == settled["term"]
        Lock(client, ORDERS).break_lock(now.session)
        with Lock(client, ORDERS).hold(timeout=PATIENCE):
            assert server.ask("/settle", method="POST")[0] == 421
        assert server.end() in (0, -signal.SIGTERM), "".join(server.said)
        assert leader(client, ORDERS) is None
