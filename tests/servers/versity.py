"""versitygw, an S3 server that people run: https://github.com/versity/versitygw (Apache-2.0).

Go builds it the first time, in two to seven minutes, and keeps it for the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.servers.s3 import KEY, SECRET, S3Server


class Versity(S3Server):
    program = "versitygw"
    package = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
    health = "/health"

    def arguments(self, objects: Path) -> list[str]:
        listen = ["--port", f"127.0.0.1:{self.port}", "--health", "/health", "--quiet", "--keep-alive"]
        return [*listen, "posix", str(objects)]

    def secrets(self) -> Mapping[str, str]:
        return {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}


if __name__ == "__main__":  # builds it, so that the suite runs its smoke
    Versity.fetched()
