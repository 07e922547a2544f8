"""What is imported when: start-up is most of what a short command costs, so nothing is loaded before its use.

The aims are lists of modules, which a busy machine does not change, and not seconds.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from consul_coord.server import ReferenceServer
from tests.cli.processes import environ

PACKAGES = (
    "consul_coord",
    "consul_coord.models",
    "consul_coord.observability",
    "consul_coord.server",
    "consul_coord.testing",
)
CLIENT_AND_LOCK = "from consul_coord import Client, Lock; Lock(Client(), 'k')"
OTHER_RECIPES = (
    "consul_coord.models.catalog",
    "consul_coord.models.once",
    "consul_coord.periods",
    "consul_coord.recipes.election.candidacy",
    "consul_coord.recipes.lock.multi",
    "consul_coord.recipes.once",
    "consul_coord.recipes.rwlock",
    "consul_coord.recipes.semaphore",
    "consul_coord.sync.election",
    "consul_coord.sync.semaphore",
)
NEVER_FOR_A_LOCK = (
    *OTHER_RECIPES,
    "consul_coord.cli.demo",
    "consul_coord.cli.doctor",
    "consul_coord.cli.elect",
    "consul_coord.cli.top",
    "consul_coord.observability",
    "consul_coord.server",
    "consul_coord.testing",
    "decimal",
    "encodings.idna",
    "fractions",
    "httpcore",
    "httpx",
    "rich",
    "tenacity",
    "trio",
    "uvicorn",
)
NEVER_FOR_A_START = (
    "consul_coord.cli.output",
    "consul_coord.events",
    "consul_coord.http",
    "consul_coord.recipes",
    "consul_coord.server.openapi",
    "consul_coord.server.probes",
    "consul_coord.sync",
    "email.parser",
    "hashlib",
    "http.client",
    "httpx",
    "rich",
    "trio",
)
EVENT_LOOP = ("anyio", "asyncio", "ssl")


_PRINT_AT_EXIT = "import atexit, sys; atexit.register(lambda: print('loaded:', *sys.modules))\n"


def loaded_by(script: str, address: str = "") -> set[str]:
    """Return the modules that a Python process has imported by its end."""
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_AT_EXIT + script],
        env=environ(CONSUL_HTTP_ADDR=address),
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    return {*done.stdout.rpartition("loaded:")[2].split()}


def among(loaded: set[str], unwanted: tuple[str, ...]) -> set[str]:
    return {name for name in loaded if f"{name}.".startswith(tuple(f"{each}." for each in unwanted))}


def test_the_package_alone_loads_next_to_nothing() -> None:
    ours = {name for name in loaded_by("import consul_coord") if name.startswith("consul_coord")}
    assert ours == {"consul_coord", "consul_coord._version", "consul_coord.lazy"}


def test_an_error_and_a_value_load_neither_client_nor_recipe() -> None:
    loaded = loaded_by("from consul_coord import AcquireTimeout, SessionSpec")
    assert (
        among(loaded, ("consul_coord.sync", "consul_coord.recipes", "consul_coord.http", "socket")) == set()
    )


def test_a_client_and_a_lock_load_no_other_recipe_and_no_event_loop() -> None:
    assert among(loaded_by(CLIENT_AND_LOCK), OTHER_RECIPES + EVENT_LOOP) == set()


def test_a_command_under_a_lock_loads_nothing_that_it_does_not_use() -> None:
    with ReferenceServer() as server:
        script = "from consul_coord.cli import main; sys.exit(main(['lock', 'jobs/a', '-q', '--', 'true']))"
        loaded = loaded_by(script, address=server.address)
    assert "consul_coord.cli.lock" in loaded
    assert among(loaded, NEVER_FOR_A_LOCK) == set()


def test_a_command_that_ends_at_once_loads_no_event_loop() -> None:
    script = (
        "from consul_coord import Client, Lock\n"
        "from consul_coord.sync import driver\n"
        "driver.start_delay = 3600.0  # as the command line does, with less\n"
        "with Client() as client, Lock(client, 'jobs/a').hold(): pass"
    )
    with ReferenceServer() as server:
        assert among(loaded_by(script, address=server.address), EVENT_LOOP) == set()


def test_a_server_that_starts_loads_nothing_for_later() -> None:
    """It has 0.3 s of a processor's time until it answers; a busy machine makes a second of them."""
    script = (
        "import os, signal, click\n"
        "from consul_coord.cli import main\n"
        "click.echo = lambda _: os.kill(os.getpid(), signal.SIGTERM)  # once it tells its address\n"
        "sys.exit(main(['serve']))"
    )
    loaded = loaded_by(script)
    assert "consul_coord.server.reference" in loaded
    assert among(loaded, NEVER_FOR_A_START) == set()


def test_a_wait_starts_the_event_loop_at_once() -> None:
    script = (
        "import threading\n"
        "from consul_coord import Client, Lock\n"
        "from consul_coord.sync import driver\n"
        "driver.start_delay = 3600.0\n"
        "with Client() as one, Client() as two:\n"
        "    hold = Lock(one, 'jobs/a').acquire()\n"
        "    threading.Timer(0.5, hold.release).start()\n"
        "    Lock(two, 'jobs/a').acquire(timeout=30)"
    )
    with ReferenceServer() as server:
        assert among(loaded_by(script, address=server.address), ("asyncio",))


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_and_python_see_the_same_names(name: str) -> None:
    package = import_module(name)
    assert package.__file__ is not None
    text = Path(package.__file__).read_text(encoding="utf-8")
    declared = {
        alias.name
        for branch in ast.walk(ast.parse(text))
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in branch.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.name in package.__all__
    }
    own = {each for each in package.__all__ if getattr(package, each, None) is not None}
    assert own == set(package.__all__), "add it to the table of the package as well"
    here = {n for n in own if getattr(getattr(package, n), "__module__", "") == name} | {"__version__"}
    assert declared >= own - here, "add it to the imports for type checkers as well"
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("name", PACKAGES)
def test_an_unknown_name_is_an_attribute_error_that_suggests_one(name: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'") as caught:
        _ = import_module(name).Nonsense
    assert caught.value.name == "Nonsense"
    assert caught.value.obj is sys.modules[name]


def test_a_module_of_the_package_is_one_of_its_attributes() -> None:
    done = loaded_by("import consul_coord; consul_coord.errors.LockLost; consul_coord.events.Lost")
    assert {"consul_coord.errors", "consul_coord.events"} <= done
