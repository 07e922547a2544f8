"""At most three calls at a time to an API that takes no more, from however many processes.

CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/rate_limited_api.py
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from consul_coord import Client, Semaphore

LIMIT = 3
CALLS = 9


class Api:
    """Somebody else's service, which counts how many call it at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._counting = threading.Lock()

    def call(self, number: int) -> str:
        """Take a while."""
        with self._counting:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.05)
        with self._counting:
            self.now -= 1
        return f"answer {number}"


def main() -> None:
    """Call it from nine threads."""
    api = Api()
    with Client() as client:
        # All processes have to say the same limit; another one is refused (SemaphoreLimitConflict).
        slots = Semaphore(client, "examples/api-slots", LIMIT)

        def limited(number: int) -> str:
            # A timeout, so that a stuck API does not pile up threads: better an error than a queue for ever.
            with slots.hold(timeout=30):
                return api.call(number)

        with ThreadPoolExecutor(max_workers=CALLS) as pool:
            answers = list(pool.map(limited, range(CALLS)))
    print(f"{len(answers)} answers, at most {api.most} at a time")
    if not 1 <= api.most <= LIMIT:
        raise SystemExit(f"{api.most} calls at a time")


if __name__ == "__main__":
    main()
