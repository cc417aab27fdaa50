"""The contract and whole logs on fake-gcs-server, by the client of Google Cloud Storage: `make test-gcs`."""

from __future__ import annotations

import pytest

from tests.servers.gcs import FakeGcs
from tests.servers.server_contract import ServerContract


@pytest.mark.gcs
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # by gcsfs
class TestGcs(ServerContract):
    kind = FakeGcs
