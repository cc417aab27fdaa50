"""A log in each way in which it can be deployed, all in this process, and what a user gets from each of them.

Calls on them are compared as text, without what has to differ: addresses, paths, times, and ids that are drawn.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import spark_log
from spark_log.client.log import Log
from spark_log.errors import CoordinatorNotAvailable, SparkLogError
from spark_log.groups.messages import LeaveGroupRequest, Request, Response
from spark_log.http.address import parse_target
from spark_log.journal.context import Context
from spark_log.journal.journal import Journal
from spark_log.journal.served_log import ServedLog, ServedMetadata
from spark_log.journal.store_operations import (
    Answered,
    Ask,
    Stores,
)
from spark_log.metadata.state import Leadership
from spark_log.roots.root_options import RootOptions
from spark_log.rpc.client import HttpLink
from spark_log.runtime.clock import SystemClock
from spark_log.serve.serve_config import ServeConfig
from spark_log.serve.serve_quorum import start_quorum
from spark_log.store.open import open_store
from tests.processes import eventually
from tests.quorum.node.quorum_nodes import one_node, three_nodes
from tests.services import QUICK, Services

EMBEDDED, COORDINATOR, QUORUM, LOSING = "embedded", "coordinator", "quorum", "answers-lost"
RAW = "not of pylog: "
"""Marks an error that no user should get."""


class Deployment(NamedTuple):
    """A log that begins empty."""

    name: str
    url: str
    folder: Path
    """For the roots of its brokers, and other files."""
    log: Log


class QuickClock(SystemClock):
    """Pauses between attempts are short."""

    def sleep_ms(self, milliseconds: float) -> None:
        super().sleep_ms(milliseconds / 50)


class LosingLink(HttpLink):
    """Loses the first answer to each change, after it was applied."""

    loses, loses_leaving = True, False
    """The second: the answer to the next request to remove members of a group."""

    def ask(self, asked: Ask) -> Answered:
        answered = super().ask(asked)
        self.loses = not self.loses
        if not self.loses:
            raise _lost()
        return answered

    def ask_group(self, holder: Leadership, request: Request, *more: Any, **named: Any) -> Response:
        answered = super().ask_group(holder, request, *more, **named)
        if self.loses_leaving and isinstance(request, LeaveGroupRequest):
            self.loses_leaving = False
            raise _lost()
        return answered


def _lost() -> CoordinatorNotAvailable:
    error = CoordinatorNotAvailable("the answer was lost")
    error.maybe_applied = True
    return error


@contextmanager
def deployments(folder: Path) -> Iterator[list[Deployment]]:
    """The first one is embedded."""
    services, nodes = Services(), list[Any]()

    def quorum(configs: Sequence[ServeConfig]) -> str:
        found = [services.run(start_quorum(replace(one, groups=QUICK, durability="os"))) for one in configs]
        nodes.extend(found)
        eventually(lambda: any(node.coordinator.leading for node in found), 120)
        return "pylog://" + ",".join(node.coordinator.address for node in found)

    def deployed(name: str, url: str, opened: Callable[[str], Log] = _connect) -> Deployment:
        return Deployment(name, url, folder / name, opened(url))

    try:
        found = [
            deployed(EMBEDDED, str(folder / EMBEDDED / "records")),
            deployed(COORDINATOR, services.url(folder / COORDINATOR / "records")),
            deployed(QUORUM, quorum(three_nodes(folder / QUORUM))),
            deployed(LOSING, quorum([one_node(folder / LOSING)]), _losing),
        ]
        yield found
        for one in found:
            one.log.close()
    finally:
        for node in nodes:
            services.run(node.stop())
        services.close()


def _connect(url: str) -> Log:
    return spark_log.connect(url, durability="os")


def _losing(url: str) -> Log:
    link = LosingLink(parse_target(url))
    info = link.info()
    link.cluster_id = info.cluster_id
    store = open_store(info.storage, None, "os")
    context = Context(QuickClock(), random.SystemRandom(), served=True)
    stores = Stores.of(ServedMetadata(store.url, local=store.local), store)
    log = ServedLog(context, info.cluster_id)
    return Log(Journal(log, stores, link, partial=True, root_options=RootOptions.of(None, "os")))


# --------------------------------------------------------------------------------------------------- what a user gets


def outcome(deployment: Deployment, call: Callable[[Deployment], object]) -> str:
    """The result of a call, or the class and text of its error with its attributes, and the warnings that it gave."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        try:
            found = repr(call(deployment))
        except Exception as error:  # noqa: BLE001  also one that no user should get
            fields = {name: value for name, value in vars(error).items() if name != "maybe_applied"}
            kind = type(error).__name__ if isinstance(error, SparkLogError) else f"{RAW}{type(error).__name__}"
            found = f"{kind}: {error} {fields or ''}"
    said = [f"warning: {note.message}" for note in notes if issubclass(note.category, UserWarning)]
    return normalised(deployment, "\n".join([found, *said]))


_PLACES = (
    (re.compile(r"127\.0\.0\.1:\d+(,127\.0\.0\.1:\d+)*"), "ADDRESS"),
    (re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z"), "TIME"),
    (re.compile(r"\b1[789]\d{11}\b"), "MS"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b([0-9a-f]{16}|[0-9a-f]{32})\b"), "ID"),
    (re.compile(r"version('?:? )\d+"), r"version\1N"),
    (re.compile(r"(epoch(?: is)? |'current': )\d+"), r"\1N"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"[-─━]{3,}"), "---"),
)


def normalised(deployment: Deployment, text: str) -> str:
    """A text without what has to differ between deployments."""
    text = text.replace(str(deployment.folder), "FOLDER").replace(deployment.url, "URL")
    text = text.replace(deployment.log.cluster_id, "CLUSTER")
    for pattern, name in _PLACES:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.splitlines())
