"""Which topics a read covers: subscribe, subscribePattern, assign."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession
from pyspark_pylog.options.parse import read_options
from pyspark_pylog.options.patterns import INTERNAL, finds, parse_pattern
from pyspark_pylog.source.ranges import wanted_partitions

import spark_log
from spark_log import NewTopic
from spark_log.errors import InvalidRequest, UnknownTopicOrPartition
from tests.spark.builders import asked


def wanted(log: spark_log.Log, **options: object) -> list[str]:
    """`t-0`, … as a batch reads them."""
    parsed = read_options(asked("/log", None, **options), streaming=False)
    return [f"{tp.topic}-{tp.partition}" for tp in wanted_partitions(log.journal.refresh(), parsed)]


@pytest.fixture
def topics(log: spark_log.Log) -> spark_log.Log:
    """Topics with 1, 2, 1 and 1 partitions."""
    log.admin.create_topics([NewTopic("topic1", 1), NewTopic("topic10", 2), NewTopic("other", 1), NewTopic("__own", 1)])
    return log


# Promise: options.md#reading
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "found none"),
        ({"subscribe": "t", "assign": '{"t":[0]}'}, "found subscribe and assign"),
        ({"subscribe": "t", "subscribePattern": "t", "assign": "x"}, "found subscribe and subscribePattern and assign"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_exactly_one_of_the_three_names_the_topics(options: dict[str, str], expected: str, streaming: bool) -> None:
    """None, or more than one, is refused with what was found."""
    with pytest.raises(InvalidRequest, match=f"exactly one of the options subscribe, .* and assign; {expected}"):
        read_options(asked("/log", None, **options), streaming=streaming)


def test_names_are_trimmed_and_empty_ones_dropped(topics: spark_log.Log) -> None:
    """subscribe; a name that comes twice is one topic."""
    assert wanted(topics, subscribe=" topic1, ,topic10 ,,topic1") == ["topic1-0", "topic10-0", "topic10-1"]


def test_a_list_without_a_name_is_refused() -> None:
    """subscribe of blanks and commas."""
    with pytest.raises(InvalidRequest, match="option subscribe: names no topic"):
        read_options(asked("/log", " , "), streaming=False)


@pytest.mark.parametrize("name", ["../etc", "a/b", "a b", ""])
def test_what_can_be_no_topic_is_refused_by_name(name: str) -> None:
    """subscribe takes no path and no character that Kafka refuses."""
    with pytest.raises(InvalidRequest):
        read_options(asked("/log", f"{name},{name}"), streaming=True)


# Promise: options.md#reading
@pytest.mark.parametrize("options", [{"subscribe": "topic1,missing"}, {"assign": {"missing": [0]}}])
@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_named_must_exist(topics: spark_log.Log, options: dict[str, object], fail: bool) -> None:
    """Whatever failOnDataLoss says."""
    with pytest.raises(UnknownTopicOrPartition, match="topic 'missing' does not exist"):
        wanted(topics, **options, failOnDataLoss=fail)


def test_a_pattern_is_searched_in_names(topics: spark_log.Log) -> None:
    """As Kafka's connector does: topic1 also finds topic10, and blanks around it do not count."""
    assert wanted(topics, subscribePattern=" topic1 ") == ["topic1-0", "topic10-0", "topic10-1"]
    assert wanted(topics, subscribePattern="^topic1$") == ["topic1-0"]
    assert wanted(topics, subscribePattern="nothing") == []


def test_a_pattern_finds_none_of_the_logs_own_topics(topics: spark_log.Log) -> None:
    """Names that begin with two underscores, whatever the pattern; they can be subscribed to by name."""
    assert not [name for name in wanted(topics, subscribePattern=".*|__own") if name.startswith("__")]
    assert wanted(topics, subscribe="__own") == ["__own-0"]


def test_an_empty_pattern_is_refused() -> None:
    """An invalid regular expression is refused as well."""
    with pytest.raises(InvalidRequest, match="option subscribePattern: is empty"):
        read_options(asked("/log", None, subscribePattern=" "), streaming=False)
    with pytest.raises(InvalidRequest, match=r"option subscribePattern: '\(' is not a Python regular expression"):
        read_options(asked("/log", None, subscribePattern="("), streaming=False)


# Promise: options.md#reading
@pytest.mark.parametrize(
    ("pattern", "found", "cure"),
    [
        ("a++", "++", "without the last +"),
        ("a*+b", "*+", "without the last +"),
        ("a?+b", "?+", "without the last +"),
        ("a{1,2}+b", "{1,2}+", "without the last +"),
        (r"\p{Alpha}+", r"\p{Alpha}", "[A-Za-z]"),
        (r"[\p{L}_]", r"\p{L}", "[A-Za-z]"),
        (r"\PL", r"\PL", "[A-Za-z]"),
        ("(?<year>20..)", "(?<year>", "(?P<name>…)"),
        (r"(?P<a>.)\k<a>", r"\k<a>", "(?P=name)"),
        (r"\Qa.b\E", r"\Q", r"\ before each character"),
        ("[a-z&&[^b]]", "&&", "(?!b)[a-z]"),
        ("[a-d[m-p]]", "[", "[a-dm-p]"),
        ("[a--b]", "--", "write it once"),
        ("(?>ab|a)c", "(?>", "(?:…)"),
        ("a(?i)b", "(?i)", "(?i:…)"),
        ("a(?-i)b", "(?-i)", "(?-i:…)"),
        ("(?d)a", "(?d)", "leave the flag out"),
        (r"a\z", r"\z", r"\Z"),
        (r"\b{g}a", r"\b{g}", r"\b"),
        (r"\x{61}", r"\x{61}", "write the character"),
        (r"\0101", r"\0101", "write the character"),
        (r"[\h]", r"\h", "write the character"),
    ],
)
def test_what_only_javas_dialect_has_is_refused_with_pythons_way(pattern: str, found: str, cure: str) -> None:
    """Python would reject it, or read it differently and find other topics without notice."""
    with pytest.raises(InvalidRequest) as error:
        read_options(asked("/log", None, subscribePattern=pattern), streaming=False)
    assert str(error.value).startswith(
        f"option subscribePattern: {found} in {pattern!r} differs from Java's regular expressions"
    )
    assert cure in str(error.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "orders-.*",
        r"a\.b",
        r"\++",
        "[+]+",
        "[]a]",
        "[^]a]",
        r"[\[a]",
        r"\\Q",
        "(?i)ABC",
        "(?i:A)b",
        "(?<!x)a",
        "(?=a)",
        "a{2}",
    ],
)
def test_what_both_dialects_have_is_taken(pattern: str) -> None:
    """And means the same."""
    assert parse_pattern(pattern) == pattern


pieces = st.sampled_from(
    [
        *"ab1.-_*+?|()[]^$\\&{}",
        "\\d",
        "\\w",
        "\\b",
        "(?:",
        "(?i)",
        "{1,2}",
        "[a-b]",
        "[^a]",
        "\\.",
        "\\Q",
        "\\0",
        "(?<",
        "&&",
    ]
)


@pytest.mark.classic("the virtual machine is in the same process there only")
def test_a_pattern_that_is_taken_finds_what_java_finds(spark: SparkSession) -> None:
    """Any pattern that Java has, too: against Java's own, which is at hand in Spark.  Topics of the log itself are
    apart.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    java = jvm.java.util.regex.Pattern

    names = st.text("ab1.-_", min_size=1, max_size=6).filter(lambda name: not name.startswith(INTERNAL))

    @given(st.lists(pieces, min_size=1, max_size=8).map("".join), names)
    def check(pattern: str, topic: str) -> None:
        try:
            parse_pattern(pattern)
            found = java.compile(pattern).matcher(topic).find()
        except (InvalidRequest, IllegalArgumentException):  # Java's dialect has not all of Python's either
            return
        assert finds(pattern, topic) == found

    check()


# Promise: options.md#reading
def test_partitions_that_do_not_exist_are_left_out(topics: spark_log.Log) -> None:
    """assign, as Kafka's connector does; in order, each once."""
    assert wanted(topics, assign={"topic10": [7, 1, 1, 0], "other": [0]}) == ["other-0", "topic10-0", "topic10-1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t", "option assign: not JSON"),
        ("[1]", "option assign: the shape is"),
        ('{"t":0}', """option assign: 't' must map to a list of partitions, as in {"topicA":[0,1]"""),
        ('{"t":["0"]}', "option assign: 't' must map to a list of partitions"),
        ('{"t":[true]}', "option assign: 't' must map to a list of partitions"),
        ("{}", "option assign: names no partition; the shape is"),
    ],
)
def test_an_assignment_of_another_shape_is_refused(text: str, expected: str) -> None:
    """With the shape that is expected."""
    with pytest.raises(InvalidRequest) as error:
        read_options(asked("/log", None, assign=text), streaming=True)
    assert expected in str(error.value)
