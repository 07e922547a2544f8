"""The layers of the package: imports point one way, and each rule is shown to catch its violation."""

from __future__ import annotations

from pathlib import Path

import pytest

import consul_coord
from tests.architecture import rules

FOLDER = Path(consul_coord.__file__).parent
SOURCES = rules.sources_of(FOLDER)
TENACITY_AT = {"consul_coord.http.retry"}


def with_planted(module: str, line: str) -> dict[str, str]:
    return SOURCES | {module: SOURCES.get(module, "") + f"\n{line}\n"}


def wrong_only_when_planted(module: str, line: str) -> set[str]:
    return {*rules.wrong_directions(with_planted(module, line))} - {*rules.wrong_directions(SOURCES)}


def test_imports_point_one_way() -> None:
    assert rules.wrong_directions(SOURCES) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("consul_coord.models.kv", "from consul_coord.http import retry"),
        ("consul_coord.errors", "from consul_coord.models import Blocker"),
        ("consul_coord.io", "from consul_coord.http.messages import Request"),
        ("consul_coord.http.retry", "from consul_coord.recipes import lease"),
        ("consul_coord.http.retry", "def late():\n    import consul_coord.sync.client"),
        ("consul_coord.recipes.session.lease", "from consul_coord.sync.client import Client"),
        ("consul_coord.recipes.session.lease", "from consul_coord import Client"),
        ("consul_coord.recipes.session.lease", "from consul_coord.host import BaseHost"),
        (
            "consul_coord.recipes.session.lease",
            "if TYPE_CHECKING:\n    from consul_coord.aio.client import AsyncClient",
        ),
        ("consul_coord.recipes.session.lease", "from ..sync import client"),
        ("consul_coord.aio.client", "from consul_coord.sync.client import Client"),
        ("consul_coord.server.state", "from consul_coord.http import messages"),
        ("consul_coord.server.state", "from consul_coord import io"),
        ("consul_coord.sync.client", "import consul_coord.server"),
        ("consul_coord.novelty", "import consul_coord.errors"),
    ],
)
def test_an_import_the_wrong_way_is_caught(module: str, line: str) -> None:
    (violation,) = wrong_only_when_planted(module, line)
    assert violation.startswith(module)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("consul_coord.sync.client", "from consul_coord.aio.driver import Supervisor"),
        ("consul_coord.recipes.session.lease", "from consul_coord.http.endpoints import kv"),
        ("consul_coord.errors", "if TYPE_CHECKING:\n    from consul_coord.models import Blocker"),
        ("consul_coord.cli.app", "from consul_coord import Client"),
    ],
)
def test_an_import_the_right_way_is_not(module: str, line: str) -> None:
    assert not wrong_only_when_planted(module, line)


@pytest.mark.parametrize("folder", ["bench", "examples", "proof", "tests", "tools"])
def test_the_package_needs_nothing_that_the_wheel_leaves_out(folder: str) -> None:
    assert (FOLDER.parent / folder).is_dir()
    assert rules.importers_of(SOURCES, folder) == set()
    planted = with_planted("consul_coord.testing.agent", f"def f():\n    import {folder}.x")
    assert rules.importers_of(planted, folder) == {"consul_coord.testing.agent"}


def test_recipes_have_no_clock_no_randomness_no_threads_and_no_network() -> None:
    assert rules.impure_recipes(SOURCES) == []


@pytest.mark.parametrize("library", sorted(rules.BANNED_IN_RECIPES))
def test_an_impure_recipe_is_caught(library: str) -> None:
    assert rules.impure_recipes(
        with_planted("consul_coord.recipes.session.lease", f"from {library} import x")
    )
    assert rules.impure_recipes(
        with_planted("consul_coord.recipes.hold.grant", f"def f():\n    import {library}")
    )


def test_recipes_have_no_finalizers() -> None:
    # The garbage collector runs them in any thread, also in one that is no event loop's.
    assert rules.finalizers(SOURCES) == []


@pytest.mark.parametrize("line", ["weakref.finalize(f, f)", "weakref.ref(f, f)", "def __del__(self): pass"])
def test_a_finalizer_is_caught(line: str) -> None:
    assert rules.finalizers(with_planted("consul_coord.recipes.hold.grant", line))


def test_no_garbage_collection_cuts_a_copy_of_a_dict_short() -> None:
    assert rules.cut_copies(SOURCES) == []


@pytest.mark.parametrize("line", ["list(self._a.b.items())", "for a, b in [*self._c.items()]: pass"])
def test_such_a_copy_is_caught(line: str) -> None:
    assert rules.cut_copies(with_planted("consul_coord.recipes.hold.grant", line))


def test_httpx_and_tenacity_are_each_imported_in_one_place() -> None:
    assert rules.importers_of(SOURCES, "httpx") == {"consul_coord.http.transport.user_clients"}
    assert rules.importers_of(SOURCES, "h11") == {"consul_coord.http.transport.wire"}
    assert rules.importers_of(SOURCES, "tenacity") == TENACITY_AT


def test_a_second_importer_is_caught() -> None:
    planted = with_planted("consul_coord.aio.driver", "def f():\n    from tenacity import retry")
    assert rules.importers_of(planted, "tenacity") == TENACITY_AT | {"consul_coord.aio.driver"}
    types_only = with_planted("consul_coord.aio.driver", "if TYPE_CHECKING:\n    import tenacity")
    assert rules.importers_of(types_only, "tenacity") == TENACITY_AT


def test_every_layer_has_a_rule_and_every_rule_a_layer() -> None:
    modules = frozenset(SOURCES)
    assert {rules.layer_of(module, modules) for module in modules} == set(rules.MAY_IMPORT)


def test_callers_share_no_lock_that_an_interrupt_may_leave_locked() -> None:
    plain = {name for name, source in SOURCES.items() if "threading.RLock" in source}
    assert {name for name in plain if not name.startswith("consul_coord.server.")} == {"consul_coord.threads"}
