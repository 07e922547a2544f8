"""The texts that the check of language leaves out until somebody has rewritten them. It only shrinks."""

UNREAD = frozenset(
    {
        "consul_coord/testing/simulation/candidates.py",
        "consul_coord/testing/simulation/chaos.py",
        "consul_coord/testing/simulation/claims.py",
        "consul_coord/testing/simulation/cluster.py",
        "consul_coord/testing/simulation/counts.py",
        "consul_coord/testing/simulation/double.py",
        "consul_coord/testing/simulation/driver.py",
        "consul_coord/testing/simulation/foreign.py",
        "consul_coord/testing/simulation/holding.py",
        "consul_coord/testing/simulation/judge.py",
        "consul_coord/testing/simulation/key_rules.py",
        "consul_coord/testing/simulation/loop.py",
        "consul_coord/testing/simulation/network.py",
        "consul_coord/testing/simulation/plan.py",
        "consul_coord/testing/simulation/program.py",
        "consul_coord/testing/simulation/promises.py",
        "consul_coord/testing/simulation/rehearsal.py",
        "consul_coord/testing/simulation/rules.py",
        "consul_coord/testing/simulation/scheduler.py",
        "consul_coord/testing/simulation/shapes.py",
        "consul_coord/testing/simulation/simulation.py",
        "consul_coord/testing/simulation/slot_rules.py",
        "consul_coord/testing/simulation/trace.py",
    }
)
