"""Sharing one query: the folders that are asked for, and the changes that a follower has to read."""

from __future__ import annotations

import pytest

from consul_coord.io import Signal
from consul_coord.recipes.watch.places import LINGER, REMEMBERED, Folder
from consul_coord.recipes.watch.together import covers_of


@pytest.mark.parametrize(
    ("paths", "avoided", "covers"),
    [
        ([], [], []),
        (["a/b/c"], [], ["a/b/c"]),
        (["a/b/c", "a/b/c"], ["a/b/c"], ["a/b/c"]),
        (["a/b/c", "a/b/d", "a/b"], [], ["a/b"]),
        (["a/b", "a/b/c/d"], ["a/b"], ["a/b"]),
        (["a/b/c", "a/d/e", "b/x"], [], ["a", "b/x"]),
        (["a/b/c", "a/b/d", "a/e/f"], ["a"], ["a/b", "a/e/f"]),
        (["a/b/c", "a/b/d", "a/e/f"], ["a", "a/b"], ["a/b/c", "a/b/d", "a/e/f"]),
        (["a/bc", "a/bd"], [], ["a"]),
        (["abc", "abd"], [], ["abc", "abd"]),
        (["/a/b", "/a/c"], [], ["/a"]),
        (["/a/b", "/c/d"], [], ["/a/b", "/c/d"]),
    ],
)
def test_the_fewest_folders_that_contain_all_places(
    paths: list[str], avoided: list[str], covers: list[str]
) -> None:
    assert sorted(covers_of(paths, avoided.__contains__)) == covers


@pytest.fixture
def folder() -> Folder:
    """Return a folder that its follower has read at index 7, at 100 s."""
    folder = Folder("a/members")
    folder.hear(7, 100.0)
    folder.known, folder.is_doubtful = 7, False
    return folder


def test_the_first_look_is_to_be_read_whole() -> None:
    folder = Folder("a/members")
    folder.hear(7, 100.0)
    assert folder.is_new
    assert folder.is_doubtful


@pytest.mark.parametrize(
    ("index", "now", "is_new", "is_doubtful"),
    [
        (7, 101.0, False, False),
        (8, 101.0, True, False),
        (0, 101.0, True, False),  # it was emptied
        (6, 101.0, True, True),  # a snapshot was restored, or a deletion forgotten
        (7, 100.0 + REMEMBERED, False, False),
        (7, 101.0 + REMEMBERED, True, True),
        (8, 101.0 + REMEMBERED, True, True),
    ],
)
def test_a_look_shows_whether_there_is_something_to_read(
    folder: Folder, index: int, now: float, is_new: bool, is_doubtful: bool
) -> None:
    waiting = Signal()
    folder.await_with(waiting)
    folder.hear(index, now)
    assert (folder.is_new, folder.is_doubtful, waiting.is_set()) == (is_new, is_doubtful, is_new)


def test_a_change_that_was_read_before_it_was_heard_of_is_not_new(folder: Folder) -> None:
    folder.known = 9
    folder.hear(8, 101.0)
    assert not folder.is_new
    folder.hear(10, 101.0)
    assert folder.is_new


def test_a_folder_is_kept_for_a_moment_for_a_follower_that_reads(folder: Folder) -> None:
    waiting = Signal()
    folder.await_with(waiting)
    assert not folder.is_left(1_000.0)
    folder.hear(8, 1_000.0)
    assert not folder.is_left(1_000.0)
    assert not folder.is_left(1_000.0 + LINGER / 2)
    assert folder.is_left(1_000.0 + LINGER)
    folder.await_with(again := Signal())
    assert not folder.is_left(2_000.0)
    assert not again.is_set()


def test_a_call_that_was_interrupted_keeps_nothing(folder: Folder) -> None:
    waiting = Signal()
    folder.await_with(waiting)
    del waiting
    assert not folder.is_waited_for


def test_a_follower_that_ends_is_forgotten_at_once(folder: Folder) -> None:
    waiting = Signal()
    folder.await_with(waiting)
    folder.leave()
    assert folder.is_left(101.0)
