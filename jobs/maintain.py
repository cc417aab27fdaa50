"""Upkeep of a log as a Spark job: retention, merging, checkpoints and garbage collection, on the driver.

    spark-submit jobs/maintain.py file:///data/log --every 10m

It needs no executors.  Any number may run beside writers and readers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from pyspark.sql import SparkSession

import spark_log
from spark_log.cli.base import DURATION, parse_pairs
from spark_log.node.maintain import maintain_every, maintain_once


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url", help="the log, file:///… or s3://…")
    parser.add_argument("--every", metavar="DURATION", help="go on for ever, a round so often, as in 10m")
    parser.add_argument("--storage-option", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(args)


def main() -> None:
    args = parse_args()
    # Cluster managers end an application that starts no session.
    spark = SparkSession.builder.appName("pylog maintain").getOrCreate()
    try:
        log = spark_log.connect(args.url, parse_pairs(args.storage_option), create=False)
        every_ms = DURATION.convert(args.every, None, None) if args.every else None
        for report in [maintain_once(log)] if every_ms is None else maintain_every(log, every_ms):
            print(asdict(report), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
