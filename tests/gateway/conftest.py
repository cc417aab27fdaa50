"""Gateways of one log."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_log
from spark_log import NewTopic
from tests.gateway.running import Running


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
def quiet() -> Any:
    """kafka-python leaves sockets to the garbage collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
