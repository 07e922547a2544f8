"""Telling a process whose threads and sockets were replaced by greenlets: a blocking client can't work there.

Its background is an event loop in a thread of its own. As a greenlet that loop shares the thread of all
others, where asyncio runs one loop only: a first client would work, and a second one fail at any moment.
"""

from __future__ import annotations

import sys

from consul_coord.errors import ConfigError

ASKED_BY = {"gevent.monkey": "is_module_patched", "eventlet.patcher": "is_monkey_patched"}
"""How each library is asked what it has replaced."""
NEEDED = ("thread", "threading", "socket", "select", "queue")


def refuse() -> None:
    """Raise ConfigError in such a process."""
    for name, question in ASKED_BY.items():
        library = sys.modules.get(name)
        is_replaced = getattr(library, question, None)
        replaced = [module for module in NEEDED if is_replaced is not None and is_replaced(module)]
        if replaced:
            message = (
                f"{name.partition('.')[0]} has replaced {', '.join(replaced)} in this process: the Client's "
                "background needs real threads. Use it where they are not replaced: in workers that are "
                "processes or threads (gunicorn's sync or gthread, Celery's prefork or threads), or use "
                "AsyncClient on asyncio or trio"
            )
            raise ConfigError(message)
