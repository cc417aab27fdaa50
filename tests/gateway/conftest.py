"""Gateways of one log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log import NewTopic
from tests.gateway.running import KeptSocket, Running, kafka_python


@pytest.fixture
def log(tmp_path: Path) -> Iterator[spark_log.Log]:
    """A log with the topic `orders`, of two partitions."""
    with spark_log.connect(str(tmp_path / "log"), durability="os") as opened:
        opened.create_topic(NewTopic("orders", 2))
        yield opened


@pytest.fixture
def serve(log: spark_log.Log) -> Iterator[Callable[..., Running]]:
    """Starts a gateway of the log."""
    started: list[Running] = []

    def start(*prefixes: str, **settings: Any) -> Running:
        started.append(Running(log, prefixes, **settings))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture(autouse=True)
def sockets() -> Iterator[None]:
    """Closes the sockets that kafka-python left open, when its clients are closed."""
    yield
    for one in KeptSocket.made:
        one.close()
    KeptSocket.made.clear()


@pytest.fixture
def python_client() -> Iterator[Callable[..., Any]]:
    """Makes clients of kafka-python, and closes them: one that is left reconnects in later tests."""
    made: list[Any] = []

    def make(kind: Callable[..., Any], address: str, *topics: str, **settings: Any) -> Any:
        made.append(kafka_python(kind, address, *topics, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()
