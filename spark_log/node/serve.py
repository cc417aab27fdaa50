"""`pylog serve`: a coordinator and its server, from the configuration to the end of the process."""

from __future__ import annotations

import asyncio
import configparser
import gc
import logging
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from spark_log.errors import InvalidRequest, SparkLogError
from spark_log.groups.group import GroupConfig
from spark_log.journal.root_options import RootOptions
from spark_log.metadata.decide.coordinators import check_is_here, moved_to
from spark_log.metadata.state import Leadership as Holder
from spark_log.net.address import is_coordinator, is_loopback, parse_address, split_address, this_host
from spark_log.net.audit import open_audit, reopen_audit
from spark_log.net.client import health_of
from spark_log.net.connection_limits import ConnectionLimits
from spark_log.net.quotas import Quota, parse_quotas
from spark_log.net.server import Pages, Server
from spark_log.net.tls import ca_context, tls_context
from spark_log.net.tokens import Tokens, parse_tokens
from spark_log.node.coordinator import Coordinator, LeaderStatus
from spark_log.node.group_coordinator import Groups
from spark_log.positions import UNITS_MS
from spark_log.store.base import ObjectStore
from spark_log.store.open import open_store

SWITCH_S = 0.0005
"""Thread switch interval for upkeep.  A commit returns from the storage ten times: with Python's default of 5 ms, it
would take 50 ms longer while the log is sealed or checkpointed."""
GARBAGE = (2_000, 10, 1_000)
"""Thresholds of Python's garbage collection.  With the defaults, it visits thousands of connections in each of their
bursts, for 100 ms and without finding garbage: reference counting frees the objects."""
CHECK_S = 0.5
"""Interval of checks that the storage accepts writes."""
LISTEN = "127.0.0.1:9550"
SECTIONS = ("audit", "coordinator", "groups", "limits", "quotas", "storage", "tls", "tokens")
SETTINGS = (
    "url",
    "listen",
    "advertise",
    "takeover.after",
    "maintain.every",
    "storage.timeout",
    "durability",
    "insecure",
)
GROUPS = ("initial.rebalance.delay", "min.session.timeout", "max.session.timeout", "max.size")
LIMITS = {
    "body.bytes": "body_bytes",
    "header.bytes": "header_bytes",
    "connections": "connections",
    "connections.per.address": "connections_per_address",
    "silent.connections": "silent_connections",
    "request.timeout": "request_ms",
}
"""In addition, the fields of `ConnectionLimits`."""


logger = logging.getLogger("spark_log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
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


class Environment(NamedTuple):
    """The log that the environment names, by PYLOG_URL or a profile."""

    url: str | None = None
    storage: Mapping[str, str] = {}


NO_ENVIRONMENT = Environment()


def read_config(
    path: str | None,
    flags: Mapping[str, Any],
    storage: Mapping[str, str],
    environment: Environment = NO_ENVIRONMENT,
) -> Config:
    """The configuration of a file (None: the defaults); flags take precedence.  Raises InvalidRequest.

    environment:  used if neither the flags nor the file have a URL.
    """
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    if path is not None:
        try:
            parser.read_string(Path(path).read_text(), path)
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise InvalidRequest(f"--conf {path} cannot be read: {error}") from error
    sections = {name: dict(parser[name]) if name in parser else {} for name in SECTIONS}
    if unknown := [name for name in parser.sections() if name not in SECTIONS]:
        raise InvalidRequest(f"{path}: unknown section [{unknown[0]}]: expected one of {', '.join(SECTIONS)}")
    values = {**sections["coordinator"], **{name: str(value) for name, value in flags.items() if value is not None}}
    _known(values, SETTINGS, "[coordinator]", path)
    _known(sections["limits"], LIMITS, "[limits]", path)
    _known(sections["groups"], GROUPS, "[groups]", path)
    _known(sections["tls"], ("certificate", "key", "ca"), "[tls]", path)
    if not values.get("url"):
        if not environment.url:
            raise InvalidRequest("no log: give its URL with -u URL, as url in [coordinator] of --conf, or in PYLOG_URL")
        values["url"], storage = environment.url, {**environment.storage, **storage}
    if values.get("durability", "disk") not in ("disk", "os"):
        raise InvalidRequest(f"invalid value {values['durability']!r} for durability: expected disk or os")
    _known(sections["audit"], ("file",), "[audit]", path)
    maintain = values.get("maintain.every", "10m")
    tokens = parse_tokens(sections["tokens"])
    return Config(
        url=values["url"],
        listen=_listen(values.get("listen", LISTEN)),
        advertise=parse_address(values["advertise"], "advertise") if values.get("advertise") else "",
        takeover_ms=_duration("takeover.after", values.get("takeover.after", "10s")),
        maintain_ms=None if maintain == "never" else _duration("maintain.every", maintain),
        storage_timeout_ms=_duration("storage.timeout", values.get("storage.timeout", "15s")),
        durability=values.get("durability", "disk"),
        insecure=_flag("insecure", values.get("insecure", "false")),
        storage={**sections["storage"], **storage},
        limits=_limits(sections["limits"]),
        groups=_groups(sections["groups"]),
        certificate=sections["tls"].get("certificate", ""),
        key=sections["tls"].get("key", ""),
        ca=sections["tls"].get("ca", ""),
        tokens=tokens,
        quotas=parse_quotas(sections["quotas"], [grant.name for grant in tokens.grants] if tokens else []),
        audit=sections["audit"].get("file", ""),
    )


def _listen(text: str) -> str:
    """`host:port`; a number alone is a port of this machine only.  Raises InvalidRequest."""
    port_only = re.fullmatch(r"[0-9]{1,5}", text.strip()) is not None
    return parse_address(f"127.0.0.1:{text.strip()}" if port_only else text, "listen")


def _known(names: Any, known: Collection[str], where: str, path: str | None) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequest(f"{path or 'flags'}: {where} has no {name!r}; expected {', '.join(known)}")


def _limits(values: Mapping[str, str]) -> ConnectionLimits:
    given = {
        field: _duration(name, values[name]) if field.endswith("_ms") else _number(name, values[name])
        for name, field in LIMITS.items()
        if name in values
    }
    return ConnectionLimits(**given)


def _groups(values: Mapping[str, str]) -> GroupConfig:
    usual = GroupConfig()
    delay, shortest, longest = (
        _duration(name, values[name]) if name in values else default
        for name, default in (
            ("initial.rebalance.delay", usual.initial_rebalance_delay_ms),
            ("min.session.timeout", usual.min_session_timeout_ms),
            ("max.session.timeout", usual.max_session_timeout_ms),
        )
    )
    return GroupConfig(
        initial_rebalance_delay_ms=delay,
        min_session_timeout_ms=shortest,
        max_session_timeout_ms=longest,
        max_size=_number("max.size", values.get("max.size", str(usual.max_size))),
    )


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


def check_config(config: Config) -> None:
    """Raises InvalidRequest for a configuration that is invalid or unsafe."""
    if is_coordinator(config.url):
        raise InvalidRequest(f"url: {config.url} is a coordinator's address; a coordinator serves a log on storage")
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


class Running:
    """A running coordinator."""

    def __init__(
        self, config: Config, coordinator: Coordinator, server: Server, port: int, thread: threading.Thread
    ) -> None:
        self.coordinator = coordinator
        self.port = port
        self._config = config
        self._server = server
        self._thread = thread
        self._checking = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                self.coordinator.check_storage()
            except Exception:
                # Without this task, a coordinator whose storage hangs would lead for ever.
                logger.exception("the check of the storage failed")

    def replace(self, new: Config) -> None:
        """Apply the tokens, quotas and certificate of another configuration; its other settings require a restart.

        Raises InvalidRequest, and then changes nothing.
        """
        check_config(new)
        if self._config.tokens and not new.tokens:
            raise InvalidRequest("[tokens]: the configuration has none; removing the last token requires a restart")
        if bool(self._config.certificate) != bool(new.certificate):
            raise InvalidRequest("[tls]: enabling or disabling TLS requires a restart")
        tls = tls_context(new.certificate, new.key) if new.certificate else None
        self._server.replace(new.tokens, new.quotas, tls)
        self._config = replace(
            self._config, tokens=new.tokens, quotas=new.quotas, certificate=new.certificate, key=new.key
        )

    async def stop(self) -> bool:
        """Release the log and close; False if the storage hangs, so that the log was not released."""
        self.coordinator.stop()
        await asyncio.to_thread(self._thread.join, self._config.storage_timeout_ms / 1000)
        self._checking.cancel()
        await self._server.stop()
        return not self._thread.is_alive()


MakePages = Callable[[Coordinator, Groups], Pages]


async def start(config: Config, store: ObjectStore | None = None, pages: MakePages | None = None) -> Running:
    """Listen, and stand by or lead in a thread.

    store:  of the log, instead of the one in the configuration.
    pages:  makes the web pages on its port; None: there are none.
    Raises InvalidRequest for an invalid configuration or if it cannot listen, and the errors of opening the log.
    """
    check_config(config)
    tls = tls_context(config.certificate, config.key) if config.certificate else None
    roots = RootOptions.of(config.storage, config.durability)
    if store is None:
        store = open_store(config.url, roots.own(), config.durability)
    coordinator = await asyncio.to_thread(
        Coordinator,
        store,
        host=this_host(),
        ask_leader=lambda holder: leader_status(holder, tls is not None, config.ca or None),
        takeover_ms=config.takeover_ms,
        maintain_ms=config.maintain_ms,
        storage_timeout_ms=config.storage_timeout_ms,
        root_options=roots,
    )
    if moved := moved_to(coordinator.journal.state.coordinator):
        raise InvalidRequest(f"the log at {config.url} was moved to {moved}: start the coordinator with that URL")
    check_is_here(coordinator.journal.state.coordinator)
    context = coordinator.journal.context
    await asyncio.to_thread(coordinator.storage_health.check_writable, context.unique())
    groups = Groups(coordinator, context.clock, context.unique, config.groups)
    coordinator.held = groups.held_positions
    server = Server(
        coordinator,
        groups,
        tokens=config.tokens,
        limits=config.limits,
        quotas=config.quotas,
        hosts=_own_hosts(config),
        pages=None if pages is None else pages(coordinator, groups),
    )
    host, port = split_address(config.listen, "listen")
    try:
        port = await server.start(host, port, tls)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequest(f"cannot listen on {config.listen}: {reason}; choose another --listen address") from error
    # From here on, the process that has the port has the address.
    coordinator.address = config.advertise or f"{host}:{port}"
    thread = threading.Thread(target=coordinator.run, name="pylog-coordinator", daemon=True)
    thread.start()
    return Running(config, coordinator, server, port, thread)


def _own_hosts(config: Config) -> frozenset[str] | None:
    """Hosts of a coordinator that only this machine can reach; None for others."""
    if not is_loopback(config.listen):
        return None
    return frozenset(split_address(one, "advertise")[0].lower() for one in (config.listen, config.advertise) if one)


async def serve(
    config: Config,
    say: Callable[[str], None],
    store: ObjectStore | None = None,
    reread: Callable[[], Config] | None = None,
    pages: MakePages | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then release the log.  Raises the errors of `start`.

    say:     called with a message once it listens.
    store:   as for `start`.
    reread:  reads the configuration again, on SIGHUP; None: SIGHUP changes nothing.
    pages:   as for `start`.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*GARBAGE)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        open_audit(config.audit)
    except OSError as error:
        raise InvalidRequest(f"[audit]: file {config.audit} cannot be opened: {error}") from error
    running = await start(replace(config, limits=_within_descriptors(config.limits)), store, pages)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, running, reread or (lambda: config))
    say(f"listening on {running.coordinator.address} for {running.coordinator.storage}")
    await stopping.wait()
    if not await running.stop():
        logger.error("exiting without a release: an operation of the storage does not return")
        logging.shutdown()
        os._exit(1)  # a normal exit would wait for that operation


def _reload(running: Running, reread: Callable[[], Config]) -> None:
    """On SIGHUP.  An invalid configuration changes nothing."""
    try:
        reopen_audit()
    except OSError as error:
        logger.error("SIGHUP: the audit log continues in its current file: %s", error)
    try:
        new = reread()
        running.replace(new)
    except SparkLogError as error:
        logger.error("SIGHUP: tokens, quotas and certificate are unchanged: %s", error)
    else:
        names = ", ".join(grant.name for grant in new.tokens.grants) if new.tokens else "none"
        logger.info("SIGHUP: tokens (%s), quotas and certificate were reloaded", names)


def _within_descriptors(limits: ConnectionLimits) -> ConnectionLimits:
    """Limits that leave file descriptors for the storage, after raising the process's limit as far as possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < limits.descriptors:
        allowed = limits.descriptors if hard == resource.RLIM_INFINITY else min(hard, limits.descriptors)
        soft = max(soft, allowed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= limits.descriptors:
        return limits
    found = limits.within(soft)
    logger.warning(
        "this process may open %d files, but the connection limits need %d: it accepts %d connections of clients and "
        "%d silent ones; increase LimitNOFILE or `ulimit -n`",
        soft,
        limits.descriptors,
        found.connections,
        found.silent_connections,
    )
    return found


def leader_status(holder: Holder, tls: bool, ca: str | None) -> LeaderStatus:
    """The state of the leader, as it reports itself."""
    if is_loopback(holder.address) and holder.host != this_host():
        return LeaderStatus.SILENT  # it cannot be reached from here
    health = health_of(holder.address, tls=tls, ca=ca)
    if health is None:
        return LeaderStatus.SILENT
    if health.stepped_down == holder.epoch:
        return LeaderStatus.STEPPED_DOWN
    return LeaderStatus.LEADS if health.leading and health.epoch == holder.epoch else LeaderStatus.SILENT
