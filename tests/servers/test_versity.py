"""The contract and whole logs on a real S3 server, versitygw: `make test-s3`."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_log.store.probe import probe
from spark_log.store.remote import FsspecStore
from tests.servers.logs import check_writers_beside
from tests.servers.server import running
from tests.servers.server_contract import ServerContract
from tests.servers.versity import Versity


@pytest.mark.s3
class TestVersity(ServerContract):
    kind = Versity


# Promise: testing.md#real-object-stores
@pytest.mark.skipif(not Versity.built().exists(), reason="`make test-s3` builds versitygw")
def test_a_log_with_two_writers(tmp_path: Path) -> None:
    """A short run of the above, in each run of the suite."""
    with running(Versity(tmp_path)) as server:
        url = server.bucket("bucket")
        probe(FsspecStore(f"{url}/probed", server.options), nonce="few")
        check_writers_beside(url, server.options, count=10)
