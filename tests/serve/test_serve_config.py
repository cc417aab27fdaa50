"""The start of a coordinator: file, flags, and errors before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_log.errors import InvalidRequest
from spark_log.groups.group import GroupConfig
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.serve.serve_config import Environment, ServeConfig, check_config, read_config
from spark_log.server.tokens import parse_tokens

SHIPPED = Path(__file__).parents[2] / "conf" / "coordinator.ini"
TOKENS = parse_tokens({"me": "admin a-token-of-the-tests"})
OPEN = ServeConfig(url="/data/log", listen="0.0.0.0:9550", advertise="log.example.org:9550")


def write(folder: Path, text: str) -> str:
    path = folder / "coordinator.ini"
    path.write_text(text)
    return str(path)


# Promise: service.md#a-coordinator, service.md#as-a-service, service.md#leadership, service.md#running-it
def test_the_file_that_is_shipped_says_the_defaults() -> None:
    """It is read as it is, and nothing in it differs from what holds without it."""
    flags = {"url": "/data/log"}
    found, usual = read_config(str(SHIPPED), flags, {}), read_config(None, flags, {})
    assert not found.tokens and not usual.tokens
    assert replace(found, tokens=usual.tokens) == usual


def test_the_file_that_is_shipped_names_the_defaults_of_other_settings(tmp_path: Path) -> None:
    """Those that are not for every coordinator are comments."""
    text = SHIPPED.read_text()
    for name in ("takeover.after", "storage.timeout", "metadata"):
        assert f"\n#{name} = " in text
        text = text.replace(f"\n#{name} = ", f"\n{name} = ")
    flags = {"url": "/data/log"}
    found, usual = read_config(write(tmp_path, text), flags, {}), read_config(None, flags, {})
    assert replace(found, tokens=usual.tokens) == usual


# Promise: cli.md#pylog-serve, service.md#running-it
def test_a_file_sets_everything_and_flags_win(tmp_path: Path) -> None:
    """Names of storage options and tokens keep their case."""
    path = write(
        tmp_path,
        "[coordinator]\nurl = /data/log\nlisten = 10.0.0.1\nadvertise = log:1\ntakeover.after = 5s\nmaintain.every = never\n"
        "storage.timeout = 20s\n"
        "durability = os\ninsecure = true\n[limits]\nbody.bytes = 7\nconnections = 3\n"
        "connections.per.address = 2\nsilent.connections = 4\nrequest.timeout = 500ms\n"
        "[groups]\ninitial.rebalance.delay = 1s\nmin.session.timeout = 2s\nmax.session.timeout = 1m\nmax.size = 9\n"
        "[storage]\nKey = a%b\n[tokens]\nMe = admin a-token-of-the-tests\n",
    )
    found = read_config(path, {"takeover.after": "2m", "listen": None}, {"more": "x"})
    assert (found.url, found.listen, found.advertise) == ("/data/log", "10.0.0.1:9550", "log:1")
    assert (found.takeover_ms, found.maintain_ms, found.durability, found.insecure) == (120_000, None, "os", True)
    assert found.storage_timeout_ms == 20_000
    assert found.limits == ConnectionLimits(
        body_bytes=7, connections=3, connections_per_address=2, silent_connections=4, request_ms=500
    )
    assert found.groups == GroupConfig(
        initial_rebalance_delay_ms=1000, min_session_timeout_ms=2000, max_session_timeout_ms=60_000, max_size=9
    )
    assert found.storage == {"Key": "a%b", "more": "x"}
    assert found.tokens.grant("Bearer a-token-of-the-tests").name == "Me"


# Promise: service.md#running-it
def test_the_file_takes_precedence_over_the_environment(tmp_path: Path) -> None:
    """The environment's URL counts where neither a flag nor the file has one, with its storage options."""
    path = write(tmp_path, "[coordinator]\nurl = /file\n[storage]\nkey = file\n")
    environment = Environment("/environment", {"key": "environment"})
    found = read_config(path, {}, {}, environment)
    assert (found.url, found.storage) == ("/file", {"key": "file"})
    assert read_config(path, {"url": "/flag"}, {}, environment).url == "/flag"
    found = read_config(None, {}, {"more": "x"}, environment)
    assert (found.url, found.storage) == ("/environment", {"key": "environment", "more": "x"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no log: give its URL"),
        ("[coordinator]\nurl = /x\nlisten = a b\n", "listen: 'a b' is not an address"),
        ("[coordinator]\nurl = /x\ntakeover.after = soon\n", "takeover.after: 'soon' is not a duration"),
        ("[coordinator]\nurl = /x\ninsecure = perhaps\n", "invalid value 'perhaps' for insecure"),
        ("[coordinator]\nurl = /x\ndurability = ram\n", "invalid value 'ram' for durability"),
        ("[coordinator]\nurl = /x\nport = 1\n", r"\[coordinator\] has no 'port'"),
        ("[coordinator]\nurl = /x\n[limits]\nconnections = 0\n", "connections: '0' is not a number above 0"),
        ("[coordinators]\n", r"unknown section \[coordinators\]: expected one of audit, coordinator, "),
        ("url = /x\n", "cannot be read"),
        ("[coordinator]\nurl = /x\n[tokens]\nme = admin\n", "tokens: me"),
        (
            "[coordinator]\nurl = /x\n[tokens]\nme = owner a-token-of-the-tests\n",
            "tokens: me has the unknown role 'owner': expected one of read, write, admin",
        ),
        ("[coordinator]\nurl = /x\n[tokens]\nme = a-token-of-the-tests admin\n", "tokens: me is not of the form"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    """Setting, value, and what is possible."""
    with pytest.raises(InvalidRequest, match=message):
        read_config(write(tmp_path, text), {}, {})


@pytest.mark.parametrize("name", ["takeover.after", "maintain.every", "storage.timeout"])
def test_an_option_that_is_wrong_is_named_as_it_was_typed(name: str) -> None:
    option = f"--{name.replace('.', '-')}"
    with pytest.raises(InvalidRequest, match=f"^{option}: '10' is not a duration"):
        read_config(None, {"url": "/x", name: "10"}, {})


# Promise: cli.md#pylog-serve
@pytest.mark.parametrize(
    ("text", "address"),
    [("19551", "127.0.0.1:19551"), (" 9 ", "127.0.0.1:9"), ("0.0.0.0", "0.0.0.0:9550"), ("log:9551", "log:9551")],
)
def test_a_number_to_listen_on_is_a_port_of_this_machine(text: str, address: str) -> None:
    """A host alone gets the usual port."""
    assert read_config(None, {"url": "/x", "listen": text}, {}).listen == address


def test_a_port_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"listen: '127.0.0.1:65536' is not an address"):
        read_config(None, {"url": "/x", "listen": "65536"}, {})


def test_a_file_that_is_not_there_is_named() -> None:
    """It is not taken for an empty one."""
    with pytest.raises(InvalidRequest, match="/no/such.ini cannot be read"):
        read_config("/no/such.ini", {"url": "/x"}, {})


# Promise: security.md#tokens-and-tls
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OPEN, r"give \[tls\] and \[tokens\]"),
        (replace(OPEN, tokens=TOKENS), r"give \[tls\] and \[tokens\]"),
        (replace(OPEN, certificate="c", key="k"), r"give \[tls\] and \[tokens\]"),
        (replace(OPEN, certificate="c"), "go together"),
        (replace(OPEN, insecure=True, ca="system"), "give certificate and key as well"),
        (replace(OPEN, insecure=True, certificate="c", key="k", ca="/no/such"), "is not a file with certificates"),
        (replace(OPEN, insecure=True, advertise=""), "advertise: 0.0.0.0:9550 is not an address for clients"),
        (ServeConfig(url="pylog://a:1"), "a coordinator serves a log on storage"),
    ],
)
def test_what_must_not_be_started_is_refused(config: ServeConfig, message: str) -> None:
    """Above all: to be reached from other machines without TLS and tokens."""
    with pytest.raises(InvalidRequest, match=message):
        check_config(config)


# Promise: security.md#tokens-and-tls
@pytest.mark.parametrize(
    "config",
    [ServeConfig(url="/x"), replace(OPEN, insecure=True), replace(OPEN, certificate="c", key="k", tokens=TOKENS)],
)
def test_loopback_or_guarded_or_said_to_be_insecure_is_fine(config: ServeConfig) -> None:
    """Each of the three ways to listen."""
    check_config(config)
