"""An odd value of an option is accepted or refused, with an error of pylog."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from pyspark_pylog.options.option_table import ALL
from pyspark_pylog.options.parse import read_options, write_options

import spark_log
from spark_log.errors import InvalidRequest, SparkLogError

ODD = (
    *("", " ", "\ud800", "\x1b", "\x00", "\ufeff1", "-1", "nan", "1e400", "\u0663", "9" * 5000, "9" * 5000 + "m"),
    *('{"t":{"0":-5}}', '{"t":{"0":1e400}}', '{"t":{"0":NaN}}', '{"t":{"-1":1}}', '{"t":{"0":true}}', '{"t":{}}'),
    *("{}", "[]", "null", '{"\\ud800":{"0":1}}', '{"t":{"\u0663":1}}', '{"t":{"0":' + "9" * 5000 + "}}", "[" * 5000),
    '{"t":{"' + "9" * 5000 + '":1}}',
)


@pytest.mark.parametrize("option", [option.name.replace("*", "key") for option in ALL])
def test_an_odd_value_is_accepted_or_refused(option: str) -> None:
    """For reads and writes, batch and streaming."""
    for value in ODD:
        for streaming in (False, True):
            given = {"path": "/tmp/log", option.lower(): value}
            source = {} if option in ("assign", "subscribePattern") else {"subscribe": "t"}
            version = {"txnappid": "a", "txnversion": "1"} if option.startswith("txn") else {}
            with suppress(SparkLogError):
                read_options(source | given, streaming=streaming)
            with suppress(SparkLogError):
                write_options({"topic": "t"} | version | given, streaming=streaming)


@pytest.mark.parametrize("option", ["producerid", "txnappid"])
def test_a_name_with_control_characters_is_refused(option: str) -> None:
    version = {"txnversion": "1"} if option == "txnappid" else {}
    with pytest.raises(InvalidRequest, match="has characters that cannot be printed"):
        write_options({"path": "/tmp/log", "topic": "t", option: "a\x1b"} | version, streaming=not version)


@pytest.mark.parametrize("given", ["x", None, 5, b"x"], ids=repr)
def test_functions_of_a_session_refuse_other_objects(given: Any) -> None:
    """`spark_log.register("x")` says what to call, without Java."""
    for function in (spark_log.register, spark_log.tune):
        with pytest.raises(
            InvalidRequest, match=rf"spark_log.{function.__name__}: expected a SparkSession, got an? \w+: "
        ):
            function(given)
    if given is not None:
        with pytest.raises(InvalidRequest, match="spark_log.where: expected a SparkSession"):
            spark_log.where("offset > 1", given)
    with pytest.raises(InvalidRequest, match="takes a DataFrame and a batch id, got an? "):
        spark_log.sink("/tmp/log", topic="t")(given, 1)
    if not isinstance(given, str):
        with pytest.raises(InvalidRequest, match="metrics_listener: expected the path of a file to write, got an? "):
            spark_log.metrics_listener(given)
        with pytest.raises(InvalidRequest, match="is not a URL; give a path"):
            spark_log.sink(given)
