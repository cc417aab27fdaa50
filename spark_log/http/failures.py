"""Errors as messages, in replies to requests."""

from __future__ import annotations

from typing import Any

import msgspec

from spark_log import errors
from spark_log.errors import InvalidRequest, SparkLogError

_FIELDS = (
    "start",
    "end",
    "current",
    "owner",
    "key",
    "address",
    "epoch",
    "last",
    "version",
    "retry_after_ms",
    "lacking",
    "placement_group",
    "partition",
    "url",
)
"""Attributes of errors that error handlers need."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error of `spark_log.errors`.  Unknown fields are ignored: they belong to newer versions."""

    error: str
    """Its class name."""
    message: str
    maybe_applied: bool = False
    fields: dict[str, Any] = {}


def failure_of(error: SparkLogError) -> Failure:
    """An error as a message."""
    fields = {name: value for name, value in vars(error).items() if name in _FIELDS}
    return Failure(error=type(error).__name__, message=str(error), maybe_applied=error.maybe_applied, fields=fields)


def error_of(failure: Failure) -> SparkLogError:
    """The error in a message; one of an unknown class becomes an InvalidRequest with the class's name."""
    kind = getattr(errors, failure.error, None)
    try:
        if not (isinstance(kind, type) and issubclass(kind, SparkLogError)):
            raise TypeError
        error = kind(failure.message, **failure.fields)
    except TypeError:
        error = InvalidRequest(f"{failure.error}: {failure.message}")
    error.maybe_applied = failure.maybe_applied
    return error
