"""SeaweedFS, a file store of several servers with an S3 gateway: https://github.com/seaweedfs/seaweedfs (Apache-2.0).

One process runs its master, a volume server, a filer with LevelDB, and the gateway.  Go builds it the first time, and
keeps it for the user.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.processes import free_port
from tests.servers.s3 import KEY, SECRET, S3Server

PARTS = ("master", "volume", "filer", "s3")
IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


class Seaweed(S3Server):
    program = "weed"
    package = "github.com/seaweedfs/seaweedfs/weed@v0.0.0-20261109003541-7506e5f91cd6"
    health = "/healthz"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports = {part: free_port() for part in PARTS} | {"s3": self.port}
        self._grpc_ports = {part: free_port() for part in PARTS}

    def _answers(self) -> bool:
        """When the gateway does, there may still be no volume to write to."""
        return super()._answers() and self._assigns()

    def _assigns(self) -> bool:
        """Whether the master finds a place for an object."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports['master']}/dir/assign", timeout=5) as answer:
                return "fid" in json.load(answer)
        except (urllib.error.URLError, OSError):
            return False

    def arguments(self, objects: Path) -> list[str]:
        identities = objects.parent / "identities.json"
        identities.write_text(json.dumps(IDENTITIES))
        listen = [f"-{part}.port={port}" for part, port in self._ports.items()]
        listen += [f"-{part}.port.grpc={port}" for part, port in self._grpc_ports.items()]
        listen += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # none
        hosts = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", f"-s3.config={identities}"]
        # Each bucket has its own volumes, and each test a bucket.
        return ["server", f"-dir={objects}", *hosts, *listen, "-volume.max=500", "-master.volumeSizeLimitMB=64"]

    def secrets(self) -> Mapping[str, str]:
        return {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
