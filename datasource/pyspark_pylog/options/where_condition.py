"""`spark_log.where(condition)`: options of a read that skips records that do not match a condition.

Spark's filter pushdown for Python sources is not safe here: a plan made for one query of a frame or a view is used for
the next query too.  So the condition is an option, and belongs to the `load()`.  In a registered session, the filters
of a query become this option, for that query alone (`native/PylogSource.java`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta, timezone, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from pyspark_pylog.sessions import check_session
from spark_log.conditions import EVERYTHING, Condition, parse_condition
from spark_log.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::(\d\d))?|UTC|GMT|UT|Z", re.ASCII)


def where(condition: str, spark: SparkSession | None = None) -> dict[str, str]:
    """`spark_log.where`, which has the documentation."""
    if spark is not None:
        check_session(spark, "where")
    options = {"where": condition}
    zone = _session_zone(spark)
    if zone is not None:
        options["timeZone"] = zone
    condition_of({name.lower(): text for name, text in options.items()})
    return options


def _session_zone(spark: SparkSession | None) -> str | None:
    from pyspark.sql import SparkSession

    session = spark or SparkSession.getActiveSession()
    return None if session is None else session.conf.get("spark.sql.session.timeZone")


def condition_of(options: Mapping[str, str]) -> Condition:
    """Parse the condition in the options of a read; all records if there is none.  Raises InvalidRequest."""
    zone = zone_named(options["timezone"]) if "timezone" in options else None
    return parse_condition(options["where"], "option where", zone) if "where" in options else EVERYTHING


def zone_named(name: str) -> tzinfo:
    """A time zone by Spark's names: `Europe/Berlin`, `+01:00`, `UTC`, …  Raises InvalidRequest."""
    found = _FIXED.fullmatch(name.strip())
    try:
        return ZoneInfo(name.strip()) if found is None else timezone(_east(*found.groups()))
    except (KeyError, OSError, ValueError) as error:
        raise InvalidRequest(
            f"option timeZone: {name!r} is an unknown time zone; expected a name "
            "such as Europe/Berlin or an offset such as +01:00, or times with a zone"
        ) from error


def _east(sign: str | None, hours: str | None, minutes: str | None) -> timedelta:
    east = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    return -east if sign == "-" else east
