"""The error of a request that no coordinator has answered.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_log.errors import CoordinatorNotAvailable, LogMoved, SparkLogError


def no_answer(failures: Sequence[tuple[str, SparkLogError]], hint: str = "") -> CoordinatorNotAvailable | LogMoved:
    """LogMoved if all that were asked belong to a quorum that another one has replaced: to ask them again is useless.

    failures:  by address.
    """
    moved = {address: error for address, error in failures if isinstance(error, LogMoved)}
    if moved and all(isinstance(one, LogMoved) or getattr(one, "address", "") in moved for _, one in failures):
        return next(iter(moved.values()))
    said = [str(one) if isinstance(one, CoordinatorNotAvailable) else f"{at}: {one}" for at, one in failures]
    return CoordinatorNotAvailable("; ".join(said) + hint)
