"""The configuration of `pylog serve`: a file, options, and the environment."""

from __future__ import annotations

import configparser
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest
from spark_log.groups.group import GroupConfig
from spark_log.http.address import is_coordinator, is_loopback, parse_address, split_address
from spark_log.http.connection_limits import ConnectionLimits
from spark_log.http.tls import ca_context
from spark_log.positions import UNITS_MS
from spark_log.quorum.node.node_config import NodeConfig, check_node_config
from spark_log.rpc.messages import SERVED
from spark_log.server.quorum.config import read_quorum
from spark_log.server.quotas import Quota, parse_quotas
from spark_log.server.tokens import Tokens, parse_tokens

LISTEN = "127.0.0.1:9550"
SECTIONS = ("audit", "coordinator", "groups", "limits", "quorum", "quotas", "storage", "tls", "tokens")
SETTINGS = (
    "url",
    "listen",
    "advertise",
    "takeover.after",
    "maintain.every",
    "storage.timeout",
    "durability",
    "metadata",
    "create",
    "insecure",
)
CHOICES = {"durability": ("disk", "os"), "metadata": ("storage", SERVED)}
"""Settings with two values, the default first."""
OF_STORAGE_ONLY = ("takeover.after", "storage.timeout", "create")
QUORUM = "quorum."
"""Flags of the section [quorum] begin with this."""
TIMES = {"takeover.after": "takeover_ms", "maintain.every": "maintain_ms", "storage.timeout": "storage_timeout_ms"}
"""By the name of a setting, the field with its value and its default.  `LIMITS` and `GROUPS` are such tables, too."""
FLAGS = ("create", "insecure")
GROUPS = {
    "initial.rebalance.delay": "initial_rebalance_delay_ms",
    "min.session.timeout": "min_session_timeout_ms",
    "max.session.timeout": "max_session_timeout_ms",
    "max.size": "max_size",
}
LIMITS = {
    "body.bytes": "body_bytes",
    "header.bytes": "header_bytes",
    "connections": "connections",
    "connections.per.address": "connections_per_address",
    "silent.connections": "silent_connections",
    "request.timeout": "request_ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The configuration of a coordinator."""

    url: str
    listen: str = LISTEN
    advertise: str = ""
    """Empty: the address it listens on."""
    takeover_ms: int = 10_000
    maintain_ms: int | None = 600_000
    storage_timeout_ms: int = 15_000
    """Without a completed write to the storage for this long, it is unhealthy and steps down."""
    durability: str = "disk"
    metadata: str = "storage"
    """Where clients read the metadata log: `storage`, or `served` by the coordinators."""
    create: bool = True
    """Create the log if the URL has none."""
    insecure: bool = False
    storage: Mapping[str, str] = field(default_factory=dict)
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    groups: GroupConfig = field(default_factory=GroupConfig)
    certificate: str = ""
    key: str = ""
    ca: str = ""
    """Certificates that verify other coordinators of the log; empty: any certificate."""
    tokens: Tokens = field(default_factory=lambda: Tokens({}))
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    """By token name."""
    audit: str = ""
    """A file, or `stderr`; empty: changes are not audited."""
    quorum: NodeConfig | None = None
    """This process is a node of a quorum, which has the metadata log; None: the log is on the storage."""


class Environment(NamedTuple):
    """The log that the environment names, by PYLOG_URL or a profile."""

    url: str | None = None
    storage: Mapping[str, str] = {}


NO_ENVIRONMENT = Environment()


def read_sections(path: str | None) -> dict[str, dict[str, str]]:
    """The sections of a file, each of which is there; None: no file.  Raises InvalidRequest."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    if path is not None:
        try:
            parser.read_string(Path(path).read_text(encoding="utf-8-sig"), path)
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise InvalidRequest(f"--conf {path} cannot be read: {error}") from error
    if unknown := [name for name in parser.sections() if name not in SECTIONS]:
        raise InvalidRequest(f"{path}: unknown section [{unknown[0]}]: expected one of {', '.join(SECTIONS)}")
    return {name: dict(parser[name]) if name in parser else {} for name in SECTIONS}


def read_config(
    path: str | None,
    flags: Mapping[str, Any],
    storage: Mapping[str, str],
    environment: Environment = NO_ENVIRONMENT,
) -> ServeConfig:
    """The configuration of a file (None: the defaults); flags take precedence.  Raises InvalidRequest.

    environment:  used if neither the flags nor the file have a URL.
    """
    sections = read_sections(path)
    given = {name: str(value) for name, value in flags.items() if value is not None}
    of_quorum = {name.removeprefix(QUORUM): value for name, value in given.items() if name.startswith(QUORUM)}
    of_quorum = {**sections["quorum"], **of_quorum}
    values = {**sections["coordinator"], **{name: one for name, one in given.items() if not name.startswith(QUORUM)}}
    _known(values, SETTINGS, "[coordinator]", path)
    _known(sections["limits"], LIMITS, "[limits]", path)
    _known(sections["groups"], GROUPS, "[groups]", path)
    _known(sections["tls"], ("certificate", "key", "ca"), "[tls]", path)
    if not values.get("url"):
        if not environment.url:
            raise InvalidRequest("no log: give its URL with -u URL, as url in [coordinator] of --conf, or in PYLOG_URL")
        values["url"], storage = environment.url, {**environment.storage, **storage}
    if of_quorum:
        _check_quorum(values)
    for name, (default, other) in CHOICES.items():
        if values.setdefault(name, default) not in (default, other):
            raise InvalidRequest(f"invalid value {values[name]!r} for {name}: expected {default} or {other}")
    _known(sections["audit"], ("file",), "[audit]", path)
    tokens = parse_tokens(sections["tokens"])
    typed = {name: f"--{name.replace('.', '-')}" for name in given}
    times: dict[str, Any] = {}
    if values.get("maintain.every") == "never":
        del values["maintain.every"]
        times["maintain_ms"] = None
    times |= _numbers(values, TIMES, typed)
    return ServeConfig(
        url=values["url"],
        listen=_listen(values.get("listen", LISTEN)),
        advertise=parse_address(values["advertise"], "advertise") if values.get("advertise") else "",
        durability=values["durability"],
        metadata=values["metadata"],
        storage={**sections["storage"], **storage},
        limits=ConnectionLimits(**_numbers(sections["limits"], LIMITS)),
        groups=GroupConfig(**_numbers(sections["groups"], GROUPS)),
        certificate=sections["tls"].get("certificate", ""),
        key=sections["tls"].get("key", ""),
        ca=sections["tls"].get("ca", ""),
        tokens=tokens,
        quotas=parse_quotas(sections["quotas"], [grant.name for grant in tokens.grants] if tokens else []),
        audit=sections["audit"].get("file", ""),
        quorum=read_quorum(of_quorum, path) if of_quorum else None,
        **times,
        **{name: _flag(name, values[name]) for name in FLAGS if name in values},
    )


def _check_quorum(values: Mapping[str, str]) -> None:
    """Raises InvalidRequest for a setting that a node of a quorum would ignore."""
    for name in OF_STORAGE_ONLY:
        if name in values:
            raise InvalidRequest(
                f"{name} is for coordinators whose log is on storage: a quorum elects its leader; remove it"
            )
    if values.get("metadata", SERVED) != SERVED:
        raise InvalidRequest(
            f"invalid value {values['metadata']!r} for metadata: the nodes of a quorum have the metadata, and serve it "
            "to clients; remove it"
        )


def _listen(text: str) -> str:
    """`host:port`; a number alone is a port of this machine only.  Raises InvalidRequest."""
    port_only = re.fullmatch(r"[0-9]{1,5}", text.strip()) is not None
    return parse_address(f"127.0.0.1:{text.strip()}" if port_only else text, "listen")


def _known(names: Any, known: Collection[str], where: str, path: str | None) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequest(f"{path or 'flags'}: {where} has no {name!r}; expected {', '.join(known)}")


def _numbers(
    values: Mapping[str, str], fields: Mapping[str, str], typed: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Values of fields, of those settings that are given.

    typed:  by name, how errors call a setting.
    """
    return {
        field: (_duration if field.endswith("_ms") else _number)(typed.get(name, name), values[name])
        for name, field in fields.items()
        if name in values
    }


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InvalidRequest(f"{name}: {text!r} is not a number above 0")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"invalid value {text!r} for {name}: expected true or false")
    return text.lower() == "true"


def _duration(name: str, text: str) -> int:
    digits = text.rstrip("smhdw")
    unit = text[len(digits) :]
    if not (digits.isascii() and digits.isdigit() and int(digits) and unit in UNITS_MS):
        raise InvalidRequest(
            f"{name}: {text!r} is not a duration; give a number and one of ms, s, m, h, d, w, as in 10m"
        )
    return int(digits) * UNITS_MS[unit]


def check_config(config: ServeConfig) -> None:
    """Raises InvalidRequest for a configuration that is invalid or unsafe."""
    if is_coordinator(config.url):
        raise InvalidRequest(f"url: {config.url} is a coordinator's address; a coordinator serves a log on storage")
    if config.quorum is not None:
        check_node_config(config.quorum)
    if bool(config.certificate) != bool(config.key):
        raise InvalidRequest("[tls]: certificate and key go together: give both or neither")
    if config.ca and not config.certificate:
        raise InvalidRequest("[tls]: ca is for coordinators with TLS: give certificate and key as well")
    if config.ca:
        ca_context(config.ca)
    if not is_loopback(config.listen) and not config.insecure and not (config.certificate and config.tokens):
        raise InvalidRequest(
            f"listen: {config.listen} can be reached from other machines; give [tls] and [tokens] in --conf, or "
            "--insecure to allow everything to every client"
        )
    if not config.advertise and split_address(config.listen, "listen")[0] in ("0.0.0.0", "[::]"):
        raise InvalidRequest(f"advertise: {config.listen} is not an address for clients; give one they can connect to")


def own_hosts(config: ServeConfig) -> frozenset[str] | None:
    """Hosts of a coordinator that only this machine can reach; None for others."""
    if not is_loopback(config.listen):
        return None
    return frozenset(split_address(one, "advertise")[0].lower() for one in (config.listen, config.advertise) if one)
