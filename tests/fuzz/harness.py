"""Fuzz one reader, or all, by coverage: ``python -m tests.fuzz.harness [TARGET] [libFuzzer's options]``.

Needs atheris, which is no dependency of this project: ``pip install atheris``, where it has a build for the
Python in use.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> None:
    """Feed the reader until its options or a finding end it; the exit code is libFuzzer's."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["consul_coord"]):
        decoders = import_module("tests.fuzz.decoders")
    names = [argument for argument in arguments[1:] if not argument.startswith("-")]
    options = [argument for argument in arguments if argument.startswith("-")]
    targets = [decoders.TARGETS[name] for name in names or decoders.TARGETS]

    def read(data: bytes) -> None:
        if not data:
            return
        with contextlib.suppress(*decoders.TYPED):
            targets[data[0] % len(targets)].read(data[1:])

    with tempfile.TemporaryDirectory() as corpus:
        for number, target in enumerate(targets):
            for place, seed in enumerate(target.seeds):
                Path(corpus, f"{number}-{place}").write_bytes(bytes((number,)) + seed)
        atheris.Setup([arguments[0], *options, corpus], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
