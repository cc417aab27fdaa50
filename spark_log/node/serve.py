"""`pylog serve`: a coordinator and its server, from a configuration to the end of the process."""

from __future__ import annotations

import asyncio
import configparser
import gc
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_log.errors import InvalidRequest
from spark_log.groups.group import GroupConfig
from spark_log.metadata.state import Coordinator as Holder
from spark_log.net.address import is_coordinator, is_loopback, parse_address, split_address, this_host
from spark_log.net.client import health_of
from spark_log.net.server import Limits, Server, tls_context
from spark_log.net.tokens import Tokens, parse_tokens
from spark_log.node.coordinator import Coordinator
from spark_log.node.groups import Groups
from spark_log.positions import UNITS_MS
from spark_log.store.open import open_store

SWITCH_S = 0.0005
"""Upkeep lets other threads go on after so long.  A commit comes back from the storage ten times: by Python's own 5 ms each time, it
would take 50 ms longer while the log is sealed or checkpointed."""
GARBAGE = (2_000, 10, 1_000)
"""Thresholds of Python's garbage collection.  With its own, thousands of connections are looked through at each of their bursts, for
100 ms and nothing found: what is made here is freed without."""
LISTEN = "127.0.0.1:9550"
SECTIONS = ("coordinator", "groups", "limits", "storage", "tls", "tokens")
SETTINGS = ("url", "listen", "advertise", "takeover.after", "maintain.every", "durability", "insecure")
GROUPS = ("initial.rebalance.delay", "min.session.timeout", "max.session.timeout", "max.size")
LIMITS = ("body.bytes", "header.bytes", "connections", "request.timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a coordinator is started with."""

    url: str
    listen: str = LISTEN
    advertise: str = ""
    """Empty: what it listens on."""
    takeover_ms: int = 10_000
    maintain_ms: int | None = 600_000
    durability: str = "disk"
    insecure: bool = False
    storage: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    groups: GroupConfig = field(default_factory=GroupConfig)
    certificate: str = ""
    key: str = ""
    tokens: Tokens = field(default_factory=lambda: Tokens({}))


def read_config(path: str | None, flags: Mapping[str, Any], storage: Mapping[str, str]) -> Config:
    """The configuration of a file (None: the defaults), over which flags go.  Raises InvalidRequest."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names of tokens and storage options have case
    if path is not None:
        try:
            parser.read_string(Path(path).read_text(), path)
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            raise InvalidRequest(f"--conf {path} cannot be read: {error}") from error
    sections = {name: dict(parser[name]) if name in parser else {} for name in SECTIONS}
    _known(parser.sections(), SECTIONS, "the section", path)
    values = {**sections["coordinator"], **{name: str(value) for name, value in flags.items() if value is not None}}
    _known(values, SETTINGS, "[coordinator]", path)
    _known(sections["limits"], LIMITS, "[limits]", path)
    _known(sections["groups"], GROUPS, "[groups]", path)
    _known(sections["tls"], ("certificate", "key"), "[tls]", path)
    if not values.get("url"):
        raise InvalidRequest("which log? give its URL with -u URL, in PYLOG_URL, or as url in [coordinator] of --conf")
    if values.get("durability", "disk") not in ("disk", "os"):
        raise InvalidRequest(f"durability: {values['durability']!r} is not possible; give disk or os")
    maintain = values.get("maintain.every", "10m")
    return Config(
        url=values["url"],
        listen=parse_address(values.get("listen", LISTEN), "listen"),
        advertise=parse_address(values["advertise"], "advertise") if values.get("advertise") else "",
        takeover_ms=_duration("takeover.after", values.get("takeover.after", "10s")),
        maintain_ms=None if maintain == "never" else _duration("maintain.every", maintain),
        durability=values.get("durability", "disk"),
        insecure=_flag("insecure", values.get("insecure", "false")),
        storage={**sections["storage"], **storage},
        limits=_limits(sections["limits"]),
        groups=_groups(sections["groups"]),
        certificate=sections["tls"].get("certificate", ""),
        key=sections["tls"].get("key", ""),
        tokens=parse_tokens(sections["tokens"]),
    )


def _known(names: Any, known: tuple[str, ...], where: str, path: str | None) -> None:
    for name in names:
        if name not in known:
            raise InvalidRequest(f"{path or 'flags'}: {where} has no {name!r}; there are {', '.join(known)}")


def _limits(values: Mapping[str, str]) -> Limits:
    usual = Limits()
    return Limits(
        body_bytes=_number("body.bytes", values.get("body.bytes", str(usual.body_bytes))),
        header_bytes=_number("header.bytes", values.get("header.bytes", str(usual.header_bytes))),
        connections=_number("connections", values.get("connections", str(usual.connections))),
        request_ms=_duration("request.timeout", values.get("request.timeout", f"{usual.request_ms}ms")),
    )


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
        raise InvalidRequest(f"{name}: {text!r} is no number above 0")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"{name}: {text!r} is not possible; give true or false")
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
    """Raises InvalidRequest for what must not be started."""
    if is_coordinator(config.url):
        raise InvalidRequest(f"url: {config.url} is a coordinator's address; a coordinator serves a log on storage")
    if bool(config.certificate) != bool(config.key):
        raise InvalidRequest("[tls]: certificate and key go together: give both or neither")
    if not is_loopback(config.listen) and not config.insecure and not (config.certificate and config.tokens):
        raise InvalidRequest(
            f"listen: {config.listen} can be reached from other machines; give [tls] and [tokens] in --conf, or say "
            "--insecure if whoever can reach it may do everything"
        )
    if not config.advertise and split_address(config.listen, "listen")[0] in ("0.0.0.0", "[::]"):
        raise InvalidRequest(f"advertise: {config.listen} is no address for clients; say how they reach it")


class Running:
    """A coordinator that listens."""

    def __init__(self, coordinator: Coordinator, server: Server, thread: threading.Thread) -> None:
        self.coordinator = coordinator
        self._server = server
        self._thread = thread

    async def stop(self) -> None:
        """Give the log back and close."""
        self.coordinator.stop()
        await asyncio.to_thread(self._thread.join)
        await self._server.stop()


async def start(config: Config) -> Running:
    """Listen, and stand by or lead in a thread.

    Raises InvalidRequest for a wrong configuration, OSError if it cannot listen, and what opening the log raises.
    """
    check_config(config)
    tls = tls_context(config.certificate, config.key) if config.certificate else None
    store = open_store(config.url, dict(config.storage), config.durability)
    coordinator = await asyncio.to_thread(
        Coordinator,
        store,
        host=this_host(),
        is_alive=lambda holder: _is_alive(holder, tls is not None),
        takeover_ms=config.takeover_ms,
        maintain_ms=config.maintain_ms,
    )
    context = coordinator.journal.context
    groups = Groups(coordinator, context.clock, context.unique, config.groups)
    coordinator.held = groups.held_positions
    server = Server(coordinator, groups, tokens=config.tokens, limits=config.limits)
    host, port = split_address(config.listen, "listen")
    port = await server.start(host, port, tls)
    # From here on, who has the port has the address.
    coordinator.address = config.advertise or f"{host}:{port}"
    thread = threading.Thread(target=coordinator.run, name="pylog-coordinator", daemon=True)
    thread.start()
    return Running(coordinator, server, thread)


async def serve(config: Config, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then give the log back.  Raises what `start` raises.

    say:  is told, in a line, that it listens.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*GARBAGE)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    running = await start(config)
    say(f"listening on {running.coordinator.address} for {running.coordinator.storage}")
    await stopping.wait()
    await running.stop()


def _is_alive(holder: Holder, tls: bool) -> bool:
    """Whether the coordinator that has the log says so itself."""
    if is_loopback(holder.address) and holder.host != this_host():
        return False  # it cannot be asked from here; that the log stands still has to do
    health = health_of(holder.address, tls=tls)
    return health is not None and health.leading and health.epoch == holder.epoch
