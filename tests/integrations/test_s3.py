"""The page on fencing with S3, run with a server that speaks it (moto), since S3 itself is a service."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integrations import pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "fencing-s3"
SERVER = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
print(f"http://{host}:{port}", flush=True)
sys.stdin.read()
server.stop()
"""
CLIENT = """
import os, sys, boto3
from botocore.exceptions import ClientError
s3 = boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT"])
"""

if missing := [
    name for name in ("boto3", "moto", "flask", "flask_cors") if not importlib.util.find_spec(name)
]:
    pytest.skip(f"needs {', '.join(missing)}: nox -s integrations", allow_module_level=True)


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """Serve an empty S3 and yield the environment that leads to it."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield {
            "S3_ENDPOINT": server.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "made-up",
            "AWS_SECRET_ACCESS_KEY": "made-up",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        server.communicate()


def ask(s3: dict[str, str], code: str, folder: Path) -> str:
    return pages.run(CLIENT + code, folder=folder, address="127.0.0.1:1", more=s3)


@pytest.mark.slow
def test_an_older_fence_is_refused(address: str, s3: dict[str, str], tmp_path: Path) -> None:
    ask(s3, "s3.create_bucket(Bucket='reports')", tmp_path)
    said = pages.run(pages.blocks(PAGE, "python")[0], folder=tmp_path, address=address, more=s3)
    assert re.fullmatch(r"refused: \d+\nby the second\n", said)


def test_names_that_carry_the_fence(reference_address: str, s3: dict[str, str], tmp_path: Path) -> None:
    ask(s3, "s3.create_bucket(Bucket='reports')", tmp_path)
    said = pages.run(pages.blocks(PAGE, "python")[1], folder=tmp_path, address=reference_address, more=s3)
    assert said == "True\n"


@pytest.mark.slow
def test_a_writer_that_is_passed_after_its_look_looks_again(
    reference_address: str, s3: dict[str, str], tmp_path: Path
) -> None:
    # The page's own `write`, with a newer hold's write squeezed in between its look and its put.
    functions = pages.blocks(PAGE, "python")[0].partition("with Client() as client:")[0]
    late = """
from types import SimpleNamespace
older, newer = SimpleNamespace(fence=4), SimpleNamespace(fence=9)
s3.create_bucket(Bucket=BUCKET)
write("first", older)
look, looks = condition, []

def condition(hold):
    found = look(hold)
    if hold is older and not looks:
        looks.append(hold)
        write("newer", newer)
    return found

try:
    write("late", older)
except StaleFence:
    print("refused", len(looks), json.load(s3.get_object(Bucket=BUCKET, Key=KEY)["Body"]))
"""
    said = pages.run(functions + late, folder=tmp_path, address=reference_address, more=s3)
    assert said == "refused 1 {'fence': 9, 'data': 'newer'}\n"
