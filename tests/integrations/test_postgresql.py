"""The page on fencing with PostgreSQL, run with a real one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.integrations import pages, postgres

psycopg = pytest.importorskip("psycopg", reason="needs psycopg: nox -s integrations")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "fencing-postgresql"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    programs = postgres.programs()
    if programs is None:
        pytest.skip("no PostgreSQL: install one, or pgserver (nox -s integrations)")
    with postgres.serving(programs) as address:
        yield address


@pytest.fixture
def database(server: str) -> Iterator[Any]:
    """Connect to a database with the page's tables."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        for block in pages.blocks(PAGE, "sql"):
            connection.execute(block)
        yield connection


def test_a_column_refuses_an_older_fence(address: str, server: str, database: Any, tmp_path: Path) -> None:
    code = pages.blocks(PAGE, "python")[0]
    said = pages.run(code, folder=tmp_path, address=address, more={"DATABASE_URL": server})
    assert re.fullmatch(r"refused: \d+\n\('by the second',\)\n", said)


def test_a_row_fences_a_whole_transaction(address: str, server: str, database: Any, tmp_path: Path) -> None:
    code = pages.blocks(PAGE, "python")[1]
    assert pages.run(code, folder=tmp_path, address=address, more={"DATABASE_URL": server}) == "(1,)\n"
    assert database.execute("SELECT line FROM log").fetchall() == [("one more",)]


def statement(name: str) -> str:
    match = re.search(rf'{name} = """(.*?)"""', pages.text_of(PAGE), re.DOTALL)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_of_two_at_once_the_newer_one_stands(server: str, database: Any, level: str) -> None:
    write = statement("WRITE")
    database.execute(write, {"id": 1, "body": "before", "fence": 1})
    database.execute(f"SET default_transaction_isolation = '{level}'")
    with psycopg.connect(server) as late:
        late.execute(f"SET default_transaction_isolation = '{level}'")
        late.commit()
        late.execute("SELECT * FROM report")  # its snapshot is from before the newer write
        database.execute(write, {"id": 1, "body": "newer", "fence": 3})
        try:
            written = late.execute(write, {"id": 1, "body": "older", "fence": 2}).rowcount
            late.commit()
        except psycopg.errors.SerializationFailure:
            written = 0
            late.rollback()
    assert written == 0
    assert database.execute("SELECT body, fence FROM report").fetchone() == ("newer", 3)


def test_a_raised_fence_undoes_the_transaction_of_an_older_one(server: str, database: Any) -> None:
    raise_it = statement("RAISE")
    assert database.execute(raise_it, {"lock": "k", "fence": 5}).rowcount == 1
    assert database.execute(raise_it, {"lock": "k", "fence": 5}).rowcount == 1
    assert database.execute(raise_it, {"lock": "k", "fence": 4}).rowcount == 0
    assert database.execute(raise_it, {"lock": "other", "fence": 1}).rowcount == 1


def test_the_clauses_for_an_existing_table(database: Any) -> None:
    database.execute("CREATE TABLE legacy (id int, body text); INSERT INTO legacy VALUES (1, 'x')")
    (add,) = re.findall(r"`(ALTER TABLE report [^`]*)`", pages.text_of(PAGE).replace("\n", " "))
    database.execute(re.sub(" +", " ", add).replace("report", "legacy"))
    update = "UPDATE legacy SET body = %(body)s, fence = %(fence)s WHERE id = 1 AND fence <= %(fence)s"
    assert "SET ..., fence = %(fence)s WHERE ... AND fence <= %(fence)s" in pages.text_of(PAGE)
    assert database.execute(update, {"body": "a", "fence": 7}).rowcount == 1
    assert database.execute(update, {"body": "b", "fence": 6}).rowcount == 0
