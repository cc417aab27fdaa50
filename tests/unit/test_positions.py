"""The grammar of positions and times."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidRequest
from spark_log.positions import (
    FORMS,
    OFFSET_MAX,
    TIME_MS_MAX,
    At,
    AtTime,
    Earliest,
    Latest,
    LatestMinus,
    OfGroup,
    Position,
    SinceNow,
    format_position,
    format_timestamp_ms,
    parse_position,
    parse_timestamp_ms,
)

TEN = 1769853600000
"""2026-01-31 10:00 UTC."""

positions = st.one_of(
    st.just(Earliest()),
    st.just(Latest()),
    st.builds(At, st.integers(0, OFFSET_MAX)),
    st.builds(LatestMinus, st.integers(0, 10**18 - 1)),
    st.builds(SinceNow, st.integers(0, 10**12 - 1) | st.integers(0, 10_000).map(lambda n: n * 60_000)),
    st.builds(AtTime, st.integers(-TIME_MS_MAX, TIME_MS_MAX) | st.integers(0, 2 * TEN)),
    st.builds(OfGroup, st.text(min_size=1).map(str.strip).filter(bool)),
)


# Promise: spark-read.md#options-of-a-read
@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("earliest", Earliest()),
        (" Latest ", Latest()),
        (-2, Earliest()),
        (-1, Latest()),
        ("-1", Latest()),
        (0, At(0)),
        ("42", At(42)),
        ("9223372036854775807", At(OFFSET_MAX)),
        (datetime(2026, 1, 31, 10), AtTime(TEN)),
        (datetime(2026, 1, 31, 10, tzinfo=timezone.utc), AtTime(TEN)),
        (datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), AtTime(TEN)),
        (datetime(2026, 1, 31, 10, microsecond=1999), AtTime(TEN + 1)),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500), AtTime(-1)),
        (pd.Timestamp("2026-01-31 10:00"), AtTime(TEN)),
        (pd.Timestamp("2026-01-31 12:00", tz="Europe/Helsinki"), AtTime(TEN)),
        (timedelta(minutes=10), SinceNow(600_000)),
        (timedelta(0), SinceNow(0)),
        (pd.Timedelta("10min"), SinceNow(600_000)),
        ("latest-100", LatestMinus(100)),
        ("LATEST-0", LatestMinus(0)),
        ("now-250ms", SinceNow(250)),
        ("now-30s", SinceNow(30_000)),
        ("now-10m", SinceNow(600_000)),
        ("NOW-2H", SinceNow(7_200_000)),
        ("now-1d", SinceNow(86_400_000)),
        ("now-1w", SinceNow(604_800_000)),
        ("@1769853600000", AtTime(TEN)),
        ("@2026-01-31T10:00Z", AtTime(TEN)),
        ("@ 2026-01-31 10:00", AtTime(TEN)),
        ("group:billing", OfGroup("billing")),
        ("Group:Night Job:2", OfGroup("Night Job:2")),
        (AtTime(5), AtTime(5)),
    ],
)
def test_every_form_is_understood(given_: object, expected: Position) -> None:
    """Keywords in any case, blanks around them, Kafka's -1 and -2, and positions themselves."""
    assert parse_position(given_) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "now",
        "newest",
        "latest+1",
        "latest-",
        "latest--1",
        "now-10",
        "now-1.5h",
        "now-10y",
        "1e3",
        "1_000",
        "0x10",
        "-3",
        -3,
        "9223372036854775808",
        OFFSET_MAX + 1,
        "٣",
        "@",
        "@yesterday",
        "@2026-02-30",
        "@99999999999999999",
        "2026-01-31T10:00Z",
        "group:",
        "group: ",
        "group",
        None,
        True,
        1.0,
        b"latest",
        {"0": 1},
        "now-999999999999w",
    ],
)
def test_anything_else_is_refused_with_all_forms(wrong: object) -> None:
    """The message names the option, the value found and what is possible."""
    with pytest.raises(InvalidRequest) as caught:
        parse_position(wrong, "option startingOffsets")
    assert str(caught.value) == f"option startingOffsets: {wrong!r} is not a position; expected {FORMS}"


@given(positions)
def test_a_position_survives_being_written_and_read(position: Position) -> None:
    """`parse_position(format_position(p)) == p` for every position."""
    assert parse_position(format_position(position)) == position


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (SinceNow(5_400_000), "now-90m"),
        (SinceNow(0), "now-0w"),
        (AtTime(TEN), "@2026-01-31T10:00:00.000Z"),
        (AtTime(TIME_MS_MAX), f"@{TIME_MS_MAX}"),
    ],
)
def test_positions_are_written_for_people(position: Position, text: str) -> None:
    """The largest unit without a remainder, and a date where the calendar has one."""
    assert format_position(position) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEN, TEN),
        ("1769853600000", TEN),
        ("-1", -1),
        ("2026-01-31", TEN - 36_000_000),
        ("2026-01-31T10:00", TEN),
        ("2026-01-31 10:00:00", TEN),
        ("2026-01-31t10:00:00z", TEN),
        ("2026-01-31T10:00:00.5Z", TEN + 500),
        ("2026-01-31T10:00:00,123456789Z", TEN + 123),
        ("2026-01-31T12:00:00+02:00", TEN),
        ("2026-01-31T12:00+02", TEN),
        ("2026-01-31T05:30:00-0430", TEN),
        (" 2026-01-31T10:00:00 Z ", TEN),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_times_are_numbers_or_iso_8601(text: object, expected: int) -> None:
    """A time without a zone is UTC, on every machine; what is below a millisecond is cut off."""
    assert parse_timestamp_ms(text) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "today",
        "2026-13-01",
        "2026-01-31T24:00",
        "2026-01-31T10",
        "2026-1-3",
        "20260131T1000Z",
        "1e12",
        None,
        True,
        1.5,
        "2026-01-31T10:00+24:00",
        TIME_MS_MAX + 1,
        "9223372036854775807",
    ],
)
def test_what_is_no_time_is_refused_with_an_example(wrong: object) -> None:
    """The message names the option, the value found and both forms."""
    with pytest.raises(InvalidRequest, match="option startingTimestamp: .* is not a time; .*2026-01-31T10:00:00Z"):
        parse_timestamp_ms(wrong, "option startingTimestamp")


@given(
    st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_times_agree_with_pythons_own(naive: datetime, zone: timezone) -> None:
    """Whatever `datetime.isoformat` writes is read as the same instant, zones included."""
    time = naive.replace(tzinfo=zone)
    expected = (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
    assert parse_timestamp_ms(time.isoformat()) == expected


@given(st.integers(-TIME_MS_MAX, TIME_MS_MAX))
def test_a_time_survives_being_written_and_read(ms: int) -> None:
    """`parse_timestamp_ms(format_timestamp_ms(t)) == t`, also where the calendar ends."""
    assert parse_timestamp_ms(format_timestamp_ms(ms)) == ms


# Promise: clients.md#positions
@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), timedelta.max, date(2026, 1, 31), pd.NaT, time(10)])
def test_times_that_are_no_position_are_refused(wrong: object) -> None:
    """A time to come, a day, no time; the message says what a datetime and a timedelta mean."""
    with pytest.raises(InvalidRequest, match=r"start: .* is not a position; .* a timedelta \(how long ago\)"):
        parse_position(wrong, "start")


# Promise: clients.md#positions
@given(st.datetimes(timezones=st.timezones() | st.none()))
def test_a_datetime_is_the_position_of_its_text(moment: datetime) -> None:
    """In any zone; without one both are UTC."""
    assert parse_position(moment) == parse_position(f"@{moment.replace(tzinfo=None).isoformat()}") or moment.tzinfo
    offset = moment.utcoffset()
    utc = moment.replace(tzinfo=timezone.utc)
    if offset is not None and offset.microseconds == 0:
        expected = (utc - datetime(1970, 1, 1, tzinfo=timezone.utc) - offset) // timedelta(milliseconds=1)
        assert parse_position(moment) == AtTime(expected)
