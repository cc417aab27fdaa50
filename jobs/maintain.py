"""Upkeep of a log as a Spark job: retention, merging, checkpoints and garbage collection, on the driver.

    spark-submit jobs/maintain.py file:///data/log --every 10m

It needs no executors.  Several may run concurrently, beside writers and readers.  Exit status 1 if a single run has
problems.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from pyspark.sql import SparkSession

import spark_log
from spark_log.cli.base import parse_duration
from spark_log.errors import InvalidRequest
from spark_log.node.maintain import maintain_every, maintain_round


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="the log, file:///… or s3://…")
    parser.add_argument("--every", metavar="DURATION", type=_duration, help="repeat this often, for ever")
    parser.add_argument("--storage-option", action="append", default=[], type=_pair, metavar="KEY=VALUE")
    return parser.parse_args(args)


def _duration(text: str) -> int:
    try:
        return parse_duration(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return name, value


def main() -> None:
    args = parse_args()
    # Cluster managers end an application that starts no session.
    spark = SparkSession.builder.appName("pylog maintain").getOrCreate()
    try:
        log = spark_log.connect(args.url, dict(args.storage_option), create=False)
        for report in [maintain_round(log)] if args.every is None else maintain_every(log, args.every):
            print(asdict(report), flush=True)
    finally:
        spark.stop()
    if report.problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
