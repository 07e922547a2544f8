"""What git ignores is not tracked: a link or a cache added by accident takes the place of other people's."""

from __future__ import annotations

import subprocess

import pytest

from tests.docs.blocks import ROOT


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git repository, as in an sdist")
def test_nothing_that_is_ignored_is_tracked() -> None:
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--ignored", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    assert done.stdout == ""
