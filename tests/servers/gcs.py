"""fake-gcs-server, which speaks Google Cloud Storage's API: https://github.com/fsouza/fake-gcs-server (BSD-2-Clause).

Go builds it the first time, in two minutes, and keeps it for the user.  gcsfs must not ask for the kind of a bucket
(`GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false`): it does so by gRPC with TLS, which this server does not have.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.servers.server import Server


class FakeGcs(Server):
    program = "fake-gcs-server"
    package = "github.com/fsouza/fake-gcs-server@v1.52.2"
    health = "/storage/v1/b"
    puts = (("POST", "/upload/"),)

    @property
    def options(self) -> dict[str, str]:
        return {"token": "anon", "project": "p", "endpoint_url": self.url}

    @property
    def environment(self) -> Mapping[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.url}

    def bucket(self, name: str) -> str:
        request = urllib.request.Request(
            f"{self.url}/storage/v1/b?project=p",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        return f"gs://{name}"

    def arguments(self, objects: Path) -> list[str]:
        listen = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-external-url", self.url]
        hosts = ["-public-host", f"127.0.0.1:{self.port}", "-log-level", "warn"]
        return [*listen, *hosts, "-backend", "filesystem", "-filesystem-root", str(objects)]
