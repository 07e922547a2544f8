"""Three candidates, of which one leads and tells where it can be reached; the others, and anybody, follow it.

CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/leader_with_followers.py
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

from consul_coord import Client, LeaderElection, Leadership, observe

KEY = "examples/web/leader"
CHANGES = 3


def main() -> None:
    """Let each of three processes lead once; threads and clients of their own stand for them here."""
    ended = threading.Event()

    def candidate(number: int) -> None:
        def serve(leadership: Leadership) -> None:
            print(f"candidate {number} leads in term {leadership.term}")
            # Work until the leadership is lost. Here the work is done at once, which resigns: the next
            # candidate leads a moment later, without any lock-delay.
            leadership.lost.wait(0.1)

        with Client() as client, LeaderElection(client, KEY, value=f"10.0.0.{number}:80") as election:
            election.run(serve, until=lambda: True)
            ended.wait()

    with Client() as client, observe(client, KEY) as leaders, ExitStack() as candidates:
        seen: list[str] = []
        started = False
        for news in leaders:
            leader = news.value
            if leader is not None and leader.text not in seen:
                # The term grows with each election: whoever gets a request of an older term can refuse it.
                print(f"follower: {leader.text} leads, term {leader.term}")
                seen.append(leader.text)
            if len(seen) == CHANGES:
                break
            if not started:
                started = True
                for number in range(1, CHANGES + 1):
                    thread = threading.Thread(target=candidate, args=(number,))
                    candidates.callback(thread.join)
                    thread.start()
        ended.set()
    print(f"followed {len(seen)} leaders")


if __name__ == "__main__":
    main()
