"""Settings that a leader decides and everybody else reads: the leader's key carries them.

CONSUL_HTTP_ADDR=127.0.0.1:8500 python examples/config_by_leader.py
"""

from __future__ import annotations

import json
import threading

from consul_coord import Client, LeaderElection, Leadership, observe

KEY = "examples/config"
RATES = (10, 20, 30)


def decide(election: LeaderElection, applied: threading.Semaphore) -> None:
    """Be the leader, and change the settings now and then."""

    def lead(leadership: Leadership) -> None:
        for rate in RATES:
            # Fenced: raises LeadershipLost instead of overwriting what a newer leader has said.
            election.proclaim(json.dumps({"rate": rate}))
            print(f"leader, term {leadership.term}: rate {rate}")
            applied.acquire(timeout=30)

    election.run(lead, until=lambda: True)


def main() -> None:
    """Follow the settings, while another process decides them; a thread and a client stand for that here."""
    applied = threading.Semaphore(0)
    with Client() as client, Client() as leading, observe(client, KEY) as changes:
        election = LeaderElection(leading, KEY, value=json.dumps({"rate": 0}))
        leader = threading.Thread(target=decide, args=(election, applied))
        leader.start()
        rate = None
        for change in changes:
            # None: nobody leads. The last settings stay in force then; that is the reader's choice.
            if change.value is not None and (told := change.value.json()["rate"]) != rate:
                rate = told
                print(f"reader: rate {rate}")
                if rate:
                    applied.release()
            if rate == RATES[-1]:
                break
        leader.join()
    print(f"the last rate is {rate}")


if __name__ == "__main__":
    main()
