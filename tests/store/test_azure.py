"""The contract on Azurite, Microsoft's own emulator of Azure's blobs: `make test-azure`, which needs npm."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import spark_log
from simulation.harness.store_contract import ObjectStoreContract
from spark_log.store.base import ObjectStore
from spark_log.store.remote import FsspecStore

pytestmark = [
    pytest.mark.azure,
    # aiohttp's warning about the parts that adlfs passes to it.
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The same in every Azurite, and no secret."""


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Storage options of an emulator on loopback, fetched the first time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("azurite")
    command = ["npx", "--yes", "--package", "azurite", "azurite-blob", "--silent", "--skipApiVersionCheck"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--blobPort", str(port), "--location", str(folder)],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _until_it_listens(process, port, folder / "log")
        address = f"http://127.0.0.1:{port}/devstoreaccount1"
        said = {"DefaultEndpointsProtocol": "http", "AccountName": "devstoreaccount1", "AccountKey": KEY}
        yield {
            "connection_string": ";".join(
                f"{name}={value}" for name, value in {**said, "BlobEndpoint": address}.items()
            )
        }
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # npx runs it in a separate process
        process.wait()


def _until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 300
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < end, f"Azurite does not start: {log.read_text()}"
        time.sleep(0.2)


def container(options: dict[str, str]) -> str:
    name = f"c{uuid.uuid4().hex}"
    fsspec.filesystem("abfs", skip_instance_cache=True, **options).mkdir(name)
    return name


class TestAzure(ObjectStoreContract):
    @pytest.fixture
    def store(self, azurite: dict[str, str]) -> ObjectStore:
        return FsspecStore(f"abfs://{container(azurite)}/some/prefix", azurite)


# Promise: testing.md#what-was-tested
def test_a_log_lives_in_a_container(azurite: dict[str, str]) -> None:
    """Appended, produced and read by two clients."""
    url = f"abfs://{container(azurite)}/log"
    log = spark_log.connect(url, azurite)
    log.append("t", [{"value": str(n)} for n in range(1000)])
    with log.producer() as producer:
        assert producer.send("t", b"last").result(60).offset == 1000
    assert spark_log.connect(url, azurite).read("t").num_rows == 1001
