"""In a process that gevent or eventlet has patched a blocking client is refused, with the reason."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "gevent without threads": "from gevent import monkey; monkey.patch_all(thread=False)",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
USE = """
from consul_coord import Client, ConfigError
try:
    Client()
except ConfigError as refused:
    print(refused)
"""


def output_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("how", PATCHES)
def test_a_patched_process_is_refused_with_the_way_out(how: str) -> None:
    library = how.split(maxsplit=1)[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    told = output_of(PATCHES[how] + USE)
    assert told.startswith(f"{library} has replaced ")
    assert "the Client's background needs real threads" in told
    assert "gthread" in told


@pytest.mark.parametrize("library", ["gevent.monkey", "eventlet.patcher"])
def test_a_library_that_has_patched_nothing_is_in_nobodys_way(library: str) -> None:
    if importlib.util.find_spec(library.partition(".")[0]) is None:
        pytest.skip(f"needs {library}")
    assert output_of(f"import {library}{USE}") == ""
