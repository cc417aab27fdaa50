"""Which errors of the client libraries of object stores are transient, and which come from these libraries.

The libraries are optional, so their classes are listed by name.  An error from neither the operating system nor one of
these libraries is a bug, and is not converted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504, 509))
"""HTTP statuses of a server that is busy, failed, or timed out."""
CODES = frozenset(
    [
        "RequestTimeout",
        "RequestTimeoutException",
        "InternalError",
        "OperationAborted",
        "ConditionalRequestConflict",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "TooManyRequests",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "XMinioServerNotInitialized",
        "XAmzContentSHA256Mismatch",
        # versitygw: a put between two deletes in its folder, the last of which removes the folder.
        "ExistingObjectIsDirectory",
    ]
)
"""Error codes of S3 and similar stores, with any HTTP status."""
CLASSES = frozenset(
    (
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.HTTPClientError",
        "botocore.exceptions.IncompleteReadError",
        "botocore.parsers.ResponseParserError",
        "aiohttp.client_exceptions.ClientConnectionError",
        "aiohttp.client_exceptions.ClientPayloadError",
        "aiohttp.http_exceptions.BadStatusLine",
        "azure.core.exceptions.ServiceRequestError",
        "azure.core.exceptions.ServiceResponseError",
        "azure.core.exceptions.IncompleteReadError",
        "google.auth.exceptions.TransportError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "requests.exceptions.ChunkedEncodingError",
        "urllib3.exceptions.HTTPError",
        "http.client.HTTPException",
        "fsspec.exceptions.FSTimeoutError",
    )
)
"""Connections that were refused, reset, or ended within an answer."""
LIBRARIES = frozenset(
    [
        "botocore",
        "aiobotocore",
        "s3fs",
        "aiohttp",
        "gcsfs",
        "google",
        "adlfs",
        "azure",
        "requests",
        "urllib3",
        "http",
        "fsspec",
    ]
)


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: the storage was unreachable or busy, or its answer was lost."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return False
    chain = tuple(_chain(error))
    answered = [status for one in chain if (status := _status(one)) is not None]
    if answered:
        return answered[-1] in STATUSES or any(_code(one) in CODES for one in chain)
    return any(_is_broken_connection(one) for one in chain)


def is_of_storage(error: BaseException) -> bool:
    """Whether the operating system or a client library raised it; other errors are bugs."""
    return isinstance(error, OSError | asyncio.TimeoutError) or any(
        kind.__module__.partition(".")[0] in LIBRARIES for kind in type(error).__mro__
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error carries: S3's in its response, Azure's and Google's in an attribute."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        found = getattr(error, "status_code", None) or getattr(error, "code", None)
    return int(found) if isinstance(found, int) or (isinstance(found, str) and found.isdigit()) else None


def _code(error: BaseException) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _is_broken_connection(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | asyncio.TimeoutError):
        return True
    return any(f"{kind.__module__}.{kind.__qualname__}" in CLASSES for kind in type(error).__mro__)
