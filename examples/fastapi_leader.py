"""A FastAPI application of which one instance leads: client and candidacy live as long as the application.

    CONSUL_HTTP_ADDR=127.0.0.1:8500 uvicorn --app-dir examples fastapi_leader:app

Run as a program it starts itself without a network, asks itself, and ends. Needs fastapi.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
from fastapi import FastAPI, Request

from consul_coord import AsyncClient, AsyncLeaderElection, TxnOp, async_leader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

KEY = "examples/fastapi/leader"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Be a candidate while the application runs; its end resigns, and the next instance leads at once."""
    async with AsyncClient() as client, AsyncLeaderElection(client, KEY, value="instance-1") as election:
        app.state.client = client
        app.state.election = election
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/leader")
async def who_leads(request: Request) -> dict[str, object]:
    """Tell who leads, and whether that is us: the first asks Consul, the second needs no I/O."""
    info = await async_leader(request.app.state.client, KEY)
    return {
        "leader": None if info is None else info.text,
        "here": request.app.state.election.is_leader,
        "healthy": request.app.state.client.healthy(slack=1.0),
    }


@app.post("/orders")
async def take_order(request: Request) -> dict[str, object]:
    """Write what only the leader may write."""
    leadership = request.app.state.election.leadership
    if leadership is None:
        return {"accepted": False}
    # `is_leader` may be old by the time of the write; the guard is not.
    await request.app.state.client.txn(*leadership.guard(), TxnOp.set("examples/fastapi/order", "1"))
    return {"accepted": True, "term": leadership.term}


async def main() -> None:
    """Start the application, ask it, and end it."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as browser,
    ):
        await app.state.election.wait_for_leadership(timeout=30)
        print((await browser.get("/leader")).json())
        print((await browser.post("/orders")).json())


if __name__ == "__main__":
    asyncio.run(main())
