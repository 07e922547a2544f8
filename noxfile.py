"""The project's checks, each in an environment of its own.

``nox`` runs lint, types, docs and tests; ``nox -l`` lists all sessions.

Rules
- A session runs what a developer can run by hand in an environment with the dependency group ``dev``, and
  nothing else; ``integrations`` takes the group of that name.
- Environments are reused; ``nox -R`` skips even the installation.
- Needed: Python 3.11 or newer, git, and a package index.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_external_run = True
nox.options.sessions = ["lint", "types", "docs", "tests"]

# 2020-02-02, the time stamp that the build backend falls back to: whatever the environment says, builds
# agree.
_EPOCH = "1580601600"

_WITH_SLOW = ("-m", "not search and not long")
"""Of pytest: what it selects by itself, and the slow tests."""


def _install_dev(session: nox.Session, group: str = "dev") -> None:
    # With --no-venv everything runs where nox does, which then has the group.
    if session.venv_backend != "none":
        session.install("--quiet", "--upgrade", "pip>=25.1")  # older ones know no groups
        session.install("--quiet", "--editable", ".[all]", "--group", group)


def _python(session: nox.Session) -> str:
    """Return the interpreter to run everything with: PATH may have others, or none with the group."""
    return sys.executable if session.venv_backend == "none" else str(Path(session.bin) / "python")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format (ruff)."""
    _install_dev(session)
    session.run(_python(session), "-m", "ruff", "check", ".")
    session.run(_python(session), "-m", "ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types (mypy --strict and pyright)."""
    _install_dev(session)
    session.run(_python(session), "-m", "mypy", "--strict")
    session.run(_python(session), "-m", "pyright", "--pythonpath", _python(session))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, also the slow ones, but not searches and long ones; ``-- ARGUMENTS`` of pytest."""
    _install_dev(session)
    session.run(_python(session), "-m", "pytest", *_WITH_SLOW, *session.posargs)


@nox.session
def search(session: nox.Session) -> None:
    """Search for faults in random runs, other ones each time; ``-- --hypothesis-seed=N`` repeats some."""
    _install_dev(session)
    session.run(
        _python(session), "-m", "pytest", "-m", "search", "--hypothesis-profile=random", *session.posargs
    )


@nox.session
def long(session: nox.Session) -> None:
    """Run the tests that take minutes."""
    _install_dev(session)
    session.run(
        _python(session), "-m", "pytest", "-m", "long", "--hypothesis-profile=random", *session.posargs
    )


@nox.session
def mutants(session: nox.Session) -> None:
    """Plant mutants and see who notices; ``-- --sample N --seed N`` for some, all without it: hours."""
    _install_dev(session)
    for what in ("measure", "run", "report"):
        session.run(_python(session), "-m", "proof.mutants", what, *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Read 1,000,000 changed replies, and fuzz every reader by coverage (atheris, for some Pythons only)."""
    _install_dev(session)
    if session.venv_backend != "none":
        session.install("--quiet", "atheris")
    session.run(_python(session), "-m", "pytest", "tests/fuzz", "-m", "long", "-rP", *session.posargs)


@nox.session
def integrations(session: nox.Session) -> None:
    """Run the tests of the how-to pages, also with the heavy packages that the group ``dev`` leaves out."""
    _install_dev(session, "integrations")
    session.run(_python(session), "-m", "pytest", "tests/integrations", *_WITH_SLOW, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into site/; a broken link or name is an error. Its code is run by the tests."""
    _install_dev(session)
    # Not --quiet: warnings that are not logged are not counted, and the build would be strict no more. The
    # theme's advertisement of its successor would drown what the build has to say.
    session.run(_python(session), "-m", "mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks; arguments after ``--`` go to them."""
    _install_dev(session)
    session.run(_python(session), "-m", "bench", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build wheel and sdist twice and compare; install the wheel into an empty environment and use it."""
    _install_dev(session)
    work = Path(session.create_tmp()).resolve()
    first, second = (_build(session, work / name) for name in ("first", "second"))
    if first != second:
        session.error(f"two builds of the same source differ: {first} and {second}")
    (wheel,) = (work / "first").glob("*.whl")
    empty = work / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    session.run(_python(session), "-m", "venv", str(empty))
    python = str(empty / "bin" / "python")
    # Away from the source, whose package would be imported instead of the installed one.
    with session.chdir(work):
        session.run(python, "-m", "pip", "install", "--quiet", str(wheel), external=True)
        session.run(python, "-W", "error", "-c", "import consul_coord", external=True)
        session.run(python, "-m", "pip", "install", "--quiet", f"{wheel}[cli]", external=True)
        session.run(str(empty / "bin" / "consul-coord"), "--version", external=True)


def _build(session: nox.Session, folder: Path) -> dict[str, str]:
    """Build into ``folder`` and return the digest of each file made, by name."""
    shutil.rmtree(folder, ignore_errors=True)
    session.run(_python(session), "-m", "build", "--outdir", str(folder), silent=True)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
