"""Profiles: a log, its token and a form of output under a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log.cli.common.profiles import read_profile
from spark_log.errors import InvalidRequest
from spark_log.server.tokens import parse_tokens
from tests.cli.commands import Pylog
from tests.services import Services

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "pylog").mkdir(parents=True)
    return tmp_path / "config" / "pylog" / "config.ini"


# Promise: command-line.md#name-your-logs
def test_a_profile_holds_url_and_output(pylog: Pylog, home: Path) -> None:
    """By --profile, before or after the command, or by PYLOG_PROFILE; options take precedence."""
    home.write_text(f"[test]\nurl = {pylog.url}\noutput = csv\n")
    expected = pylog.ok("topic", "list", "-o", "csv")
    for args in (["topic", "list", "--profile", "test"], ["--profile", "test", "topic", "list"]):
        assert pylog.run(*args, url=False).stdout == expected
        assert pylog.run(*args, PYLOG_URL="/no/such/log", PYLOG_OUTPUT="json").stdout == expected
    assert pylog.run("topic", "list", url=False, PYLOG_PROFILE="test").stdout == expected
    assert pylog.run("topic", "list", "-o", "table", url=False, PYLOG_PROFILE="test").stdout == pylog.ok(
        "topic", "list"
    )


# Promise: command-line.md#name-your-logs
def test_the_environment_takes_precedence_over_the_profile_in_it(pylog: Pylog, home: Path) -> None:
    """PYLOG_URL is nearer at hand than PYLOG_PROFILE."""
    home.write_text("[other]\nurl = /no/such/log\noutput = csv\n")
    found = pylog.run("topic", "list", PYLOG_PROFILE="other", PYLOG_OUTPUT="table")
    assert found.stdout == pylog.ok("topic", "list")


# Promise: command-line.md#name-your-logs
def test_a_token_is_sent_to_its_own_url_only(services: Services, tmp_path: Path, home: Path) -> None:
    """With -u or PYLOG_URL, nothing of a profile but its output counts."""
    running = services.start(tmp_path / "log", tokens=parse_tokens({"me": f"admin {TOKEN}"}))
    url = f"pylog://{running.coordinator.address}"
    home.write_text(f"[prod]\nurl = {url}\ntoken = {TOKEN}\n")
    pylog = Pylog(url)
    assert pylog.run("topic", "create", "a", "--profile", "prod", url=False).exit_code == 0
    assert "token" in pylog.refused("topic", "create", "b")
    assert pylog.run("topic", "create", "b", PYLOG_PROFILE="prod").exit_code == 1
    assert "either --profile or -u" in pylog.wrong("topic", "list", "--profile", "prod", "-u", url)
    services.stop_all()


# Promise: command-line.md#name-your-logs
def test_storage_options_and_a_certificate(home: Path) -> None:
    """Names keep their case; `ca` becomes part of the URL."""
    home.write_text("[s3]\nurl = s3://bucket/log\nstorage.endpoint_url = http://x\nstorage.Key = k\n")
    assert read_profile("s3").storage_options == {"endpoint_url": "http://x", "Key": "k"}
    home.write_text("[tls]\nurl = pylog://log.example.org:9550\nca = /etc/ca.pem\n")
    assert read_profile("tls").url == "pylog://log.example.org:9550?ca=/etc/ca.pem"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[test]\nurl = x\n", "profile 'tset' is not in "),
        ("[tset]\nurk = x\n", "unknown key 'urk'"),
        ("[tset]\nurl = x\noutput = xml\n", "invalid output 'xml'"),
        ("[tset]\nurl = x\nca = y\n", "ca belongs to a url of the form pylog://"),
        ("url = x\n", "cannot be read"),
    ],
)
def test_a_profile_that_cannot_be_taken_is_named(pylog: Pylog, home: Path, text: str, message: str) -> None:
    home.write_text(text)
    assert message in pylog.refused("topic", "list", "--profile", "tset")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"token = {TOKEN}\n[prod]\n", "line 1 is before the first"),
        (f"[prod]\ntoken: {TOKEN}\n", "NAME = VALUE in line 2"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_not_shown(home: Path, text: str, expected: str) -> None:
    """It may hold a token."""
    home.write_text(text)
    with pytest.raises(InvalidRequest, match=expected) as raised:
        read_profile("prod")
    assert TOKEN not in str(raised.value) and raised.value.__cause__ is None
