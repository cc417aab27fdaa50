"""One broker and one Spark with Kafka's connector for all of these tests: `make test-kafka`."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

# Path and environment are set there, and its fixtures serve here as well.
from tests.spark.conftest import ROOT, log, no_query_left, tracebacks, url  # noqa: F401

from pyspark.sql import SparkSession  # isort: skip

import spark_log
from simulation.harness.kafka import Broker, broker
from tests.kafka.clients import Client
from tests.spark.builders import CONFS

FOLDER = Path(os.environ.get("PYLOG_KAFKA", ROOT / ".pylog" / "kafka"))
"""Where the jars are kept from run to run."""
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "100",
    "log.retention.ms": "-1",
}
"""Quick to start and quick to compact; the records' times are fixed and grow old."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    with broker(FOLDER, two_free_ports(), SETTINGS) as running:
        yield running


def two_free_ports() -> int:
    """The first of two."""
    for port in range(29092, 29292, 2):
        with socket.socket() as one, socket.socket() as two:
            if one.connect_ex(("127.0.0.1", port)) and two.connect_ex(("127.0.0.1", port + 1)):
                return port
    raise RuntimeError("no two ports side by side are free")


@pytest.fixture(scope="session")
def spark(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    builder = SparkSession.builder.master("local[2]").appName("tests with Kafka").config("spark.jars", kafka.jars)
    for name, value in CONFS.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse"))).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    spark_log.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def client(spark: SparkSession, kafka: Broker) -> Iterator[Client]:
    """Kafka's own clients."""
    with Client(spark, kafka.address) as one:
        yield one
