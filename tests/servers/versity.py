"""versitygw, an S3 server that people run: https://github.com/versity/versitygw (Apache-2.0).

Go builds it the first time, in two to seven minutes, and keeps it for the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.servers.server import Server

KEY, SECRET = "a-key", "a-long-secret"


class Versity(Server):
    program = "versitygw"
    package = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
    health = "/health"
    puts = (("PUT", "/meta/log/"), ("PUT", "/data/"))

    @property
    def options(self) -> dict[str, str]:
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.url}

    @property
    def environment(self) -> Mapping[str, str]:
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": self.url}

    def bucket(self, name: str) -> str:
        import boto3

        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **keys).create_bucket(Bucket=name)
        return f"s3://{name}"

    def arguments(self, objects: Path) -> list[str]:
        return [
            "--port",
            f"127.0.0.1:{self.port}",
            "--health",
            "/health",
            "--quiet",
            "--keep-alive",
            "posix",
            str(objects),
        ]

    def secrets(self) -> Mapping[str, str]:
        return {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}


if __name__ == "__main__":  # builds it, so that the suite runs its smoke
    Versity.fetched()
