"""The options of a table's storage, by the names that deltalake and PyIceberg have for them.

Ours are those of fsspec.  Without any, both packages find credentials in the environment, as fsspec does.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_log.errors import InvalidRequest
from spark_log.store.fsspec_options import parse_json

S3 = {
    "key": ("aws_access_key_id", "s3.access-key-id"),
    "secret": ("aws_secret_access_key", "s3.secret-access-key"),
    "token": ("aws_session_token", "s3.session-token"),
    "endpoint_url": ("aws_endpoint_url", "s3.endpoint"),
    "region_name": ("aws_region", "s3.region"),
}
"""Each option of s3fs, or of its `client_kwargs`, by deltalake and by PyIceberg."""


def delta_options(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of deltalake.  Raises InvalidRequest for one that it does not have."""
    given = _flat(url, options)
    plain_http = {"aws_allow_http": "true"} if given.get("endpoint_url", "").startswith("http:") else {}
    return {S3[name][0]: value for name, value in given.items()} | plain_http


def iceberg_options(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """The properties of a catalog of PyIceberg.  Raises InvalidRequest for an option that it does not have."""
    return {S3[name][1]: value for name, value in _flat(url, options).items()}


def _flat(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options, with those inside of `client_kwargs`."""
    inner = parse_json("client_kwargs", options.get("client_kwargs", "{}"))
    if not isinstance(inner, Mapping):
        raise InvalidRequest(f"storage option client_kwargs: {inner!r} is not a JSON object")
    found = {name: value for name, value in options.items() if name != "client_kwargs"} | dict(inner)
    unknown = sorted(found if not url.startswith("s3://") else found.keys() - S3.keys())
    if unknown:
        raise InvalidRequest(
            f"the storage option {unknown[0]!r} of {url} has no equivalent in the package that writes the table: leave it "
            f"out, and set the environment of the driver in its place; on s3://, {', '.join(S3)} are known"
        )
    # PyIceberg would ask Amazon for the region of a bucket that is elsewhere.
    return {"region_name": "us-east-1", **found} if "endpoint_url" in found else found
