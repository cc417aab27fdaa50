"""Servers that speak S3's API: their clients' options and buckets."""

from __future__ import annotations

from collections.abc import Mapping

from tests.servers.server import Server

KEY, SECRET = "a-key", "a-long-secret"


class S3Server(Server):
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
