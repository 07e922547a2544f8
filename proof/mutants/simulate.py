"""Run the simulator until a rule is broken: ``python -m proof.mutants.simulate SEEDS``; exits with 1 then.

With ``MUTANTS_REACH`` in the environment it writes instead which lines of the core so many runs reach.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(seeds: int) -> int:
    """Return the exit code."""
    from consul_coord.testing import Simulation

    for seed in range(seeds):
        violation = Simulation(seed=seed).outcome().violation
        if violation is not None:
            print(f"seed {seed}: {violation}"[:300])  # noqa: T201 - for the run's log
            return 1
    return 0


def measured(seeds: int, file: Path) -> int:
    """Write down what is reached, and return the exit code."""
    from proof.mutants.reach import measuring

    measured_by = measuring()
    measured_by.start()
    code = main(seeds)
    measured_by.stop()
    data = measured_by.get_data()
    reached = {
        str(Path(each).relative_to(ROOT)): sorted(data.lines(each) or ()) for each in data.measured_files()
    }
    file.write_text(json.dumps(reached))
    return code


if __name__ == "__main__":
    target = os.environ.get("MUTANTS_REACH")
    number = int(sys.argv[1])
    sys.exit(measured(number, Path(target)) if target else main(number))
