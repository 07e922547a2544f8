"""Asyncio workers: one client, a lock for what must be alone, a semaphore for what must be few.

CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/async_workers.py
"""

from __future__ import annotations

import asyncio

from consul_coord import AsyncClient, AsyncLock, AsyncSemaphore

WORKERS = 6
LIMIT = 2


class Books:
    """What goes wrong if two write at once, and how many read at once."""

    def __init__(self) -> None:
        self.total = 0
        self.readers = 0
        self.most_readers = 0

    async def read(self) -> None:
        """Be one of the readers for a while."""
        self.readers += 1
        self.most_readers = max(self.most_readers, self.readers)
        await asyncio.sleep(0.02)
        self.readers -= 1

    async def add(self) -> None:
        """Add one, in a way that loses additions if two do so at once."""
        before = self.total
        await asyncio.sleep(0.01)
        self.total = before + 1


async def worker(client: AsyncClient, books: Books) -> None:
    """Read with few others, and write alone."""
    # Objects are cheap and do no I/O: make them where they are used. All of a client share one session.
    async with AsyncSemaphore(client, "examples/books/readers", LIMIT).hold(timeout=60):
        await books.read()
    # If the lock is lost, the body is cancelled where it awaits, and LockLost comes out of the block.
    async with AsyncLock(client, "examples/books/writer").hold(timeout=60):
        await books.add()


async def main() -> None:
    """Run six workers."""
    books = Books()
    async with AsyncClient() as client, asyncio.TaskGroup() as tasks:
        for _ in range(WORKERS):
            tasks.create_task(worker(client, books))
    print(f"{books.total} additions, at most {books.most_readers} readers at a time")
    if books.total != WORKERS or books.most_readers > LIMIT:
        raise SystemExit("they got in each other's way")


if __name__ == "__main__":
    asyncio.run(main())
