"""What an extra brings and is not installed is told by the extra, wherever it is asked for."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from consul_coord.extras import MissingExtra, needs


@pytest.mark.parametrize(
    ("module", "asked", "extra"),
    [
        ("uvicorn", "from consul_coord.server import ReferenceServer", "server"),
        ("httptools", "from consul_coord.server import ReferenceServer", "server"),
        ("opentelemetry", "from consul_coord.observability import OpenTelemetryObserver", "otel"),
        ("prometheus_client", "from consul_coord.observability import PrometheusObserver", "prometheus"),
    ],
)
def test_a_missing_extra_is_named(module: str, asked: str, extra: str) -> None:
    script = f"import sys; sys.modules[{module!r}] = None\n{asked}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
    )
    last = done.stderr.splitlines()[-1]
    # Since Python 3.15, a suggestion of the interpreter may follow.
    assert f" {module} is not installed: pip install 'consul-coord[{extra}]'" in last


def test_it_is_a_module_not_found_that_names_the_module() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, needs("some"):
        raise ModuleNotFoundError("m", name="absent.part")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.name, str(again)) == (MissingExtra, "absent", str(caught.value))


def test_the_innermost_need_is_told() -> None:
    with pytest.raises(MissingExtra, match=r"\[inner\]"), needs("outer"), needs("inner"):
        raise ModuleNotFoundError("m", name="absent")


@pytest.mark.parametrize("name", [None, "consul_coord.absent"])
def test_a_module_of_this_package_is_no_extra(name: str | None) -> None:
    with pytest.raises(ModuleNotFoundError) as caught, needs("some"):
        raise ModuleNotFoundError("m", name=name)
    assert type(caught.value) is ModuleNotFoundError
