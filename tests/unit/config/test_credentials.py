"""Tokens and basic auth: which one counts, how a file is followed, and that none is ever shown."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from consul_coord import config
from consul_coord.config import TOKEN_FILE_INTERVAL, TOKEN_FILE_LIMIT, Credentials, Settings
from consul_coord.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

ENVIRON = {"CONSUL_HTTP_TOKEN": "env-token"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("file-token\n")
    return path


def token_of(credentials: Credentials, now: float = 0.0) -> str | None:
    return credentials.headers(now).get("X-Consul-Token")


def resolved(
    environ: dict[str, str], *, token: str | None = None, token_file: Path | None = None
) -> str | None:
    return token_of(Settings.resolve(environ=environ, token=token, token_file=token_file).credentials)


def test_which_token_counts(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other-token")
    everything = ENVIRON | {"CONSUL_HTTP_TOKEN_FILE": str(file)}
    assert resolved({}) is None
    assert resolved(ENVIRON) == "env-token"
    assert resolved(everything) == "file-token"
    assert resolved(everything, token="mine") == "mine"
    assert resolved(everything, token_file=other) == "other-token"
    assert resolved(everything, token="") is None
    assert resolved({"CONSUL_HTTP_TOKEN": "", "CONSUL_HTTP_TOKEN_FILE": ""}) is None


def test_a_token_and_a_file_contradict_each_other(file: Path) -> None:
    with pytest.raises(ConfigError, match="token_file"):
        resolved({}, token="mine", token_file=file)


@pytest.mark.parametrize("bad", ["s3cret\r\nX-A: 1", "s3cret ", "s3cret\x00", "s3crét", "\ts3cret"])
def test_a_token_that_can_not_be_a_header_is_refused_unseen(bad: str) -> None:
    cases: tuple[tuple[str | None, dict[str, str], str], ...] = (
        (bad, {}, "^token "),
        (None, {"CONSUL_HTTP_TOKEN": bad}, "^CONSUL_HTTP_TOKEN "),
    )
    for token, environ, source in cases:
        with pytest.raises(ConfigError, match=source) as raised:
            resolved(environ, token=token)
        assert "s3cr" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "header"),
    [("ann:pw", "Basic YW5uOnB3"), ("ann", "Basic YW5uOg=="), ("ann:a:b", "Basic YW5uOmE6Yg==")],
)
def test_basic_auth_by_the_environment(text: str, header: str) -> None:
    settings = Settings.resolve(environ={"CONSUL_HTTP_AUTH": text})
    assert settings.credentials.headers(0.0) == {"Authorization": header}


def test_explicit_basic_auth_wins() -> None:
    settings = Settings.resolve(environ={"CONSUL_HTTP_AUTH": "env:x"}, http_auth=("ann", "pw"))
    assert settings.credentials.headers(0.0) == {"Authorization": "Basic YW5uOnB3"}


@pytest.mark.parametrize(
    "pair", [("", "s3cret"), ("a:b", "s3cret"), ("ann", "s3cret\n"), ("an\rn", "s3cret")]
)
def test_bad_basic_auth_is_refused_unseen(pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^http_auth") as raised:
        Settings.resolve(environ={}, http_auth=pair)
    assert "s3cret" not in str(raised.value)


def test_bad_basic_auth_names_its_variable() -> None:
    with pytest.raises(ConfigError, match=r"^CONSUL_HTTP_AUTH"):
        Settings.resolve(environ={"CONSUL_HTTP_AUTH": ":s3cret"})


# --- files


def test_a_file_is_trimmed(file: Path) -> None:
    file.write_text("  file-token \r\n\n")
    assert token_of(Credentials(token_file=file)) == "file-token"


@pytest.mark.parametrize(
    "content", ["", " \n", "two tokens", "s3cret\ns3cret", "s3cr\x00t", "s" * (TOKEN_FILE_LIMIT + 1)]
)
def test_a_file_without_one_token_is_refused_unseen(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError) as raised:
        Credentials(token_file=file)
    assert str(file) in str(raised.value)
    assert "s3cr" not in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Credentials(token_file=tmp_path / "missing")
    with pytest.raises(ConfigError, match="directory"):
        Credentials(token_file=tmp_path)


def test_a_changed_file_is_read_again_once_a_second_at_most(file: Path) -> None:
    credentials = Credentials(token_file=file)
    first = credentials.headers(10.0)
    file.write_text("new-token")
    assert credentials.headers(10.0 + TOKEN_FILE_INTERVAL / 2) is first
    assert token_of(credentials, 10.0 + TOKEN_FILE_INTERVAL) == "new-token"


def test_a_replaced_file_is_read_again(file: Path, tmp_path: Path) -> None:
    credentials = Credentials(token_file=file)
    replacement = tmp_path / "replacement"
    replacement.write_text("new--token\n")
    stamp = file.stat()
    os.utime(replacement, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    replacement.rename(file)
    assert token_of(credentials, 10.0) == "new--token"


def test_an_unchanged_file_gives_the_same_headers(file: Path) -> None:
    credentials = Credentials(token_file=file)
    first = credentials.headers(0.0)
    assert all(credentials.headers(float(now)) is first for now in range(5))
    assert credentials.reload() is False
    assert credentials.headers(9.0) is first


def test_a_reload_tells_whether_the_token_is_another(file: Path) -> None:
    credentials = Credentials(token_file=file)
    credentials.headers(10.0)
    file.write_text("new-token")
    assert credentials.reload() is True
    assert token_of(credentials, 10.0) == "new-token"
    assert credentials.reload() is False
    assert Credentials(token="static").reload() is False


@pytest.mark.parametrize("trouble", ["missing", "empty", "garbage"])
def test_trouble_with_the_file_keeps_the_last_token(
    file: Path, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    credentials = Credentials(token_file=file)
    if trouble == "missing":
        file.unlink()
    else:
        file.write_text("" if trouble == "empty" else "s3cret garbage")
    with caplog.at_level(logging.WARNING):
        assert [token_of(credentials, float(now)) for now in range(5)] == ["file-token"] * 5
        assert credentials.reload() is False
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    assert "s3cret" not in caplog.text
    assert "file-token" not in caplog.text
    file.write_text("new-token")
    assert token_of(credentials, 100.0) == "new-token"


def test_each_new_trouble_with_the_file_is_told_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    credentials = Credentials(token_file=file)
    times = iter(map(float, range(100)))
    for number in (1, 2, 3):
        file.unlink()
        for _ in range(5):
            token_of(credentials, next(times))
        assert len(caplog.records) == number
        file.write_text(f"token-{number}")
        assert token_of(credentials, next(times)) == f"token-{number}"


def test_a_file_that_could_not_be_used_is_read_again_though_it_looks_the_same(file: Path) -> None:
    # As after a chmod, or a second write within one tick of the file system's clock.
    credentials = Credentials(token_file=file)
    file.write_text("not a token")
    stamp = file.stat()
    assert token_of(credentials, 10.0) == "file-token"
    file.write_text("new---token")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert token_of(credentials, 20.0) == "new---token"


@pytest.mark.parametrize("token", ["given", None])
def test_a_token_that_is_given_later_stays_whatever_becomes_of_the_file(
    file: Path, token: str | None
) -> None:
    credentials = Credentials(token_file=file)
    credentials.headers(10.0)
    credentials.replace(token)
    file.write_text("of-the-file")
    assert credentials.headers(20.0).get("X-Consul-Token") == token
    assert credentials.reload() is False
    assert credentials.headers(30.0).get("X-Consul-Token") == token
    assert str(file) not in repr(credentials)


def replaced_amid_a_reading(file: Path, *, at_line: int) -> Credentials | None:
    """Return what was given a token amid a reading of the changed file; None when that has less lines."""
    file.write_text("file-token")
    credentials, lines, ended = Credentials(token_file=file), itertools.count(1), [True]
    file.write_text("another-token-of-the-file")

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != config.__file__:
            return None
        if event == "line" and next(lines) == at_line:
            sys.settrace(None)
            frame.f_trace = None
            ended.clear()
            credentials.replace("given")
            return None
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        credentials.headers(10.0)
    finally:
        sys.settrace(before)
    return None if ended else credentials


def test_a_token_that_is_given_while_another_thread_reads_the_file_stays(file: Path) -> None:
    line = 0
    for line in itertools.count(1):
        credentials = replaced_amid_a_reading(file, at_line=line)
        if credentials is None:
            break
        assert [token_of(credentials, now) for now in (10.0, 20.0)] == ["given"] * 2, line
    assert line > 5


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("pipe-token\n",))
    writer.start()
    credentials = Credentials(token_file=pipe)
    writer.join()
    assert token_of(credentials, 100.0) == "pipe-token"
    assert credentials.reload() is False
    assert token_of(credentials, 200.0) == "pipe-token"


def test_a_repr_shows_where_from_and_not_what(file: Path) -> None:
    shown = {
        repr(Credentials()),
        repr(Credentials(token="s3cret")),
        repr(Credentials(token_file=file, http_auth=("ann", "s3cret"))),
    }
    assert shown == {
        "<Credentials: token none, basic auth none>",
        "<Credentials: token set, basic auth none>",
        f"<Credentials: token from {str(file)!r}, basic auth set>",
    }
