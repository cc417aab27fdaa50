"""The grammar of conditions."""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.conditions import (
    ALL,
    EVERYTHING,
    FORMS,
    HIGHEST,
    LOWEST,
    Both,
    ColumnTest,
    Condition,
    Constant,
    Either,
    Tree,
    Values,
    Window,
    listed_values,
    parse_condition,
)
from spark_log.errors import InvalidRequest

BERLIN = ZoneInfo("Europe/Berlin")


def parse(text: str, zone: tzinfo | None = timezone.utc) -> Condition:
    return parse_condition(text, "option where", zone)


def us(*parts: int) -> int:
    """A moment of UTC in microseconds."""
    return int(datetime(*parts, tzinfo=timezone.utc).timestamp()) * 1_000_000  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("offset = 5", Values(5, 5)),
        ("offset == 5", Values(5, 5)),
        ("offset < 5", Values(LOWEST, 4)),
        ("offset <= 5", Values(LOWEST, 5)),
        ("offset > 5", Values(6, HIGHEST)),
        ("offset >= -5", Values(-5, HIGHEST)),
        ("offset BETWEEN 5 AND 7", Values(5, 7)),
        ("offset in (7, 5, 5, 9)", Values(5, 9, frozenset([5, 7, 9]))),
        ("5 < offset", Values(6, HIGHEST)),
        ("5 >= offset", Values(LOWEST, 5)),
        ("OFFSET>5 and`Offset`<9", Values(6, 8)),
        ("((offset > 5) and (offset < 9 and offset < 8))", Values(6, 7)),
        ("offset in (1, 5, 9) and offset > 1 and 9 > offset", Values(5, 5, frozenset([5]))),
        ("offset in (1, 5) and offset in (5, 9)", Values(5, 5, frozenset([5]))),
        ("offset < 99999999999999999999", ALL),
        ("offset > -99999999999999999999", ALL),
    ],
)
def test_comparisons_come_to_ranges(text: str, expected: Values) -> None:
    """Both ends are included; names in any case, with backquotes or without; constants on either side."""
    assert parse(text) == Condition(offset=expected)


@pytest.mark.parametrize(
    "text",
    [
        "offset > 5 and offset < 5",
        "offset between 7 and 5",
        "partition in (1, 2) and partition = 3",
        "offset = 99999999999999999999",
        "offset in (99999999999999999999)",
        "timestamp > '2026-01-31' and timestamp < '2026-01-31'",
    ],
)
def test_what_nothing_can_match_is_known_to_be_empty(text: str) -> None:
    """Contradictions, and numbers that no column can hold."""
    assert parse(text).empty and not EVERYTHING.empty


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-01-31", timezone.utc, us(2026, 1, 31)),
        ("2026-1-3", timezone.utc, us(2026, 1, 3)),
        (" 2026-01-31 10:00 ", timezone.utc, us(2026, 1, 31, 10)),
        ("2026-01-31T1:2:3", timezone.utc, us(2026, 1, 31, 1, 2, 3)),
        ("2026-01-31 10:00:00.5", timezone.utc, us(2026, 1, 31, 10) + 500_000),
        ("2026-01-31 10:00:00.1234567", timezone.utc, us(2026, 1, 31, 10) + 123_456),
        ("1969-12-31 23:59:59.5", timezone.utc, -500_000),
        ("2026-01-31 10:00:00Z", BERLIN, us(2026, 1, 31, 10)),
        ("2026-01-31T10:00:00.5+01:30", None, us(2026, 1, 31, 8, 30) + 500_000),
        ("2026-01-31T10:00:00-01:00", None, us(2026, 1, 31, 11)),
        ("2026-01-31", BERLIN, us(2026, 1, 30, 23)),
        ("2026-07-31 10:00", BERLIN, us(2026, 7, 31, 8)),
        ("2026-03-29 02:30", BERLIN, us(2026, 3, 29, 1, 30)),
        ("2026-10-25 02:30", BERLIN, us(2026, 10, 25, 0, 30)),
    ],
)
def test_times_are_what_sparks_sql_makes_of_them(text: str, zone: tzinfo | None, expected: int) -> None:
    """In the given zone if they have none: a time that a clock shows twice is the first one, one that it skips moves by
    the hour; fractions of a microsecond are cut off.
    """
    assert parse(f"timestamp = '{text}'", zone) == Condition(time_us=Values(expected, expected))
    assert parse(f'TIMESTAMP "{text}" = timestamp', zone) == Condition(time_us=Values(expected, expected))


def test_a_date_is_its_first_moment() -> None:
    """As text and as a typed constant."""
    expected = Condition(time_us=Values(us(2026, 1, 31), us(2026, 2, 1) - 1))
    assert parse("timestamp >= date '2026-01-31' and timestamp < '2026-02-01'") == expected
    assert expected.window == Window(us(2026, 1, 31), us(2026, 2, 1))
    assert EVERYTHING.window is None


def test_columns_are_narrowed_one_by_one() -> None:
    """AND goes through all of them."""
    found = parse("partition in (0, 1) and timestamp < '2026-01-31' and offset >= 5 and partition < 1")
    assert found == Condition(partition=listed_values([0]), offset=Values(5), time_us=Values(last=us(2026, 1, 31) - 1))


# Promise: spark-read.md#reading-less, tasks/typed.md#skip-what-cannot-match
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("value like 'a and (b' and offset > 3", "value like 'a and (b'"),
        ("offset > 3 and topic = 'a'", "topic = 'a'"),
        ("offset > 5L and partition = 1", "offset > 5L"),
        ("offset <=> 3", "offset <=> 3"),
        ("offset is null", "offset is null"),
        ("offset > 3 or key = 'a' and offset > 4", "key = 'a'"),
        ("amount + 1 > 5", "amount + 1 > 5"),
        ("amount not like 'a'", "amount not like 'a'"),
        ("offset > partition", "offset > partition"),
        ("offset + 1 > 5", "offset + 1 > 5"),
        ("offset in (select max(x) from y)", "offset in (select max(x) from y)"),
        ("timestamp in ('2026-01-31')", "timestamp in ('2026-01-31')"),
        ("timestamp > now() - interval 1 hour and offset > 4", "timestamp > now() - interval 1 hour"),
        ("offset > 5; drop table t", "offset > 5; drop table t"),
        ("offset > 5and partition = 1", "offset > 5and partition = 1"),
        ("5 '<' offset", "5 '<' offset"),
        ("offset", "offset"),
        ("offset between 3 and", "offset between 3 and"),
    ],
)
def test_what_a_read_cannot_use_is_refused_by_name(text: str, part: str) -> None:
    """The sentence holds the part, and what is possible."""
    with pytest.raises(InvalidRequest) as refused:
        parse(text)
    assert str(refused.value) == (
        f"option where: {part!r} cannot be used by a read: expected {FORMS}; leave other conditions to the query "
        f"(at character {text.index(part) + 1})"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a comparison is missing"),
        ("offset > 3 and", "a comparison is missing"),
        ("(offset > 3", "a parenthesis is not closed"),
        ("offset > 3)", "a parenthesis is closed that was not opened"),
        ("offset > '5'", "offset is compared with whole numbers, and '5' is not one (at character 10)"),
        ("offset > 5.5", "offset is compared with whole numbers, and 5.5 is not one (at character 10)"),
        ("country = null", "nothing is equal to NULL: write IS NULL or IS NOT NULL (at character 11)"),
        (
            "timestamp > 1769853600000",
            "timestamp is compared with times, as '2026-01-31T10:00:00Z', and 1769853600000 is",
        ),
        ("timestamp > 'yesterday'", "'yesterday' is not a supported time"),
        ("timestamp > '2026-01-31 10:00Z'", "with seconds and a zone, '2026-01-31T10:00:00+01:00'"),
        ("timestamp > date '2026-01-31 10:00:00'", "is not a supported time"),
        ("timestamp > '2026-02-30'", "there is no such time as '2026-02-30'"),
        ("timestamp > '0000-01-01'", "there is no such time as '0000-01-01'"),
    ],
)
def test_a_wrong_constant_or_form_is_said_to_be_so(text: str, sentence: str) -> None:
    """With the value that was found."""
    with pytest.raises(InvalidRequest, match="option where: ") as refused:
        parse(text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("text", ["(" * 5000 + "id = 1" + ")" * 5000, "not " * 5000 + "id = 1"])
def test_a_condition_that_is_nested_too_deeply_is_refused(text: str) -> None:
    """Not with Python's own error."""
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        parse(text)


def test_a_time_without_a_zone_needs_one_from_elsewhere() -> None:
    """The sentence has both ways round."""
    with pytest.raises(InvalidRequest, match="'2026-01-31' has no zone.*option timeZone; spark_log.where"):
        parse("timestamp > '2026-01-31'", None)


def without_places(tree: Tree) -> Tree:
    if isinstance(tree, ColumnTest):
        return tree._replace(at=0)
    return type(tree)(tuple(map(without_places, tree[0])))


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("amount > 1 and offset > 5", ColumnTest("amount", ">", (Constant("number", "1", "1"),))),
        (
            "offset > 5 and -1.5e3 >= `Amount`",
            ColumnTest("Amount", "<=", (Constant("number", "-1.5e3", "-1.5e3"),)),
        ),
        ("offset > 5 and not x'0A' = b", ColumnTest("b", "<>", (Constant("binary", "0A", "x'0A'"),))),
        ("offset > 5 and not ok", ColumnTest("ok", "<>", (Constant("boolean", "true", "true"),))),
        ("offset > 5 and `value.offset` is not null", ColumnTest("value.offset", "not null", ())),
        (
            "(not (a is null or offset in (1, 2))) and offset > 5",
            Both((ColumnTest("a", "not null", ()), ColumnTest("offset", "not in", (1, 2)))),
        ),
        (
            "offset > 5 and (partition = 1 or partition between 3 and 4)",
            Either(
                (
                    ColumnTest("partition", "=", (1,)),
                    Both((ColumnTest("partition", ">=", (3,)), ColumnTest("partition", "<=", (4,)))),
                )
            ),
        ),
    ],
)
def test_what_is_no_range_stays_a_tree(text: str, rest: object) -> None:
    """Comparisons of offsets that are joined to it by AND are still ranges."""
    found = parse(text)
    assert found.rest is not None and found.offset == Values(6, HIGHEST)
    assert without_places(found.rest.tree) == rest


NUMBERS = st.integers(-20, 20)
VALUES = st.builds(Values, NUMBERS, NUMBERS) | st.builds(listed_values, st.sets(NUMBERS)) | st.just(ALL)


@given(VALUES, VALUES)
def test_both_is_what_is_in_both(one: Values, other: Values) -> None:
    """Number by number; and `empty` says whether there is any."""
    both = one.both(other)
    inside = [number for number in range(-25, 25) if number in one and number in other]
    assert [number for number in range(-25, 25) if number in both] == inside
    assert both == ALL or both.empty == (not inside)
