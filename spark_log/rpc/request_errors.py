"""The errors of requests to coordinators: of one that none has answered, and of one that was refused."""

from __future__ import annotations

from collections.abc import Sequence

from spark_log.errors import CoordinatorNotAvailable, InvalidRequest, LogMoved, SparkLogError
from spark_log.http.client_connection import HttpResponse
from spark_log.http.failures import Failure, error_of
from spark_log.rpc.messages import decode


def no_answer(failures: Sequence[tuple[str, SparkLogError]], hint: str = "") -> CoordinatorNotAvailable | LogMoved:
    """LogMoved if all that were asked belong to a quorum that another one has replaced: to ask them again is useless.

    failures:  by address.
    """
    moved = {address: error for address, error in failures if isinstance(error, LogMoved)}
    if moved and all(isinstance(one, LogMoved) or getattr(one, "address", "") in moved for _, one in failures):
        return next(iter(moved.values()))
    said = [str(one) if isinstance(one, CoordinatorNotAvailable) else f"{at}: {one}" for at, one in failures]
    return CoordinatorNotAvailable("; ".join(said) + hint)


def refusal_of(address: str, method: str, path: str, answer: HttpResponse) -> SparkLogError:
    """The error in a reply with another status than 200."""
    try:
        error = error_of(decode(answer.data, Failure, "the error"))
        if answer.status not in (404, 405):
            return error
        return InvalidRequest(
            f"{address} does not support {method} {path.partition('?')[0]}, which this pylog sends: it runs "
            "another version of pylog; update the older one"
        )
    except InvalidRequest:
        reply = f"it replied {answer.status}, {answer.data[:80]!r}"
        if answer.status >= 500:
            # A proxy's reply: it may have forwarded the request.
            failed = CoordinatorNotAvailable(f"{address}: {reply}")
            failed.maybe_applied = method != "GET"
            return failed
        return InvalidRequest(f"{address} is not a pylog coordinator: {reply}")
