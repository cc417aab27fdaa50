"""The contract and whole logs on a second S3 server, SeaweedFS: `make test-s3 SERVER=seaweed`."""

from __future__ import annotations

import pytest

from tests.servers.seaweed import Seaweed
from tests.servers.server_contract import ServerContract


@pytest.mark.s3
class TestSeaweed(ServerContract):
    kind = Seaweed
