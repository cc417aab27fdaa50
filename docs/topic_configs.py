"""docs/topic-configs.md from the table of configs in `spark_log/configs/settings.py`."""

from __future__ import annotations

from collections.abc import Iterable

from spark_log.configs.config_types import ConfigSpec, Effect, format_value
from spark_log.configs.settings import CLUSTER_CONFIGS, TOPIC_CONFIGS

PAGE = """\
# Configs

Generated from `spark_log/configs/settings.py` by `make docs`.

## Topics

Set when a topic is created (`pylog topic create NAME -c retention.ms=3600000`), or later with
`pylog topic alter`.
Names, ranges and defaults are Kafka's, except the defaults of the two levels of compression. An unknown name
or a value out of range is rejected. A duration or a size may have a unit, as in Spark's settings:
`retention.ms=7d`, `segment.bytes=256m` (1m is 1,048,576 bytes). It is stored and shown as Kafka's number.

{in_force}

Kafka's `gzip` and `snappy` are rejected: Arrow has no such codec, and pylog substitutes no other.
Level 1 is the default of both codecs: on JSON, Kafka's defaults take 1.6 to 6 times the CPU of a write and
save nothing compared with level 1 of zstd ([the figures](decisions/0019-zstd.md)).

### When records expire

`pylog maintain` removes whole segments from the front of a partition, as Kafka does. A segment is removed
when its newest record is older than `retention.ms` and all earlier segments are removed. Merged segments
span `segment.ms`, or an eighth of `retention.ms` if that is less. A record is kept for at least
`retention.ms`, and at most that span longer, plus the time between two runs.

The record's timestamp counts: records with event times of last year expire in the next run. Set
`retention.ms=-1` on topics for history.

A record with a timestamp in the future keeps its segment, and those after it, until that time is past.
`message.timestamp.after.max.ms` rejects such records; `pylog topic trim` removes them.

### When records are compacted

`pylog maintain` and the coordinator compact topics with `compact` in `cleanup.policy`:
[what is kept, and when](tasks/keep-the-latest.md). The active segment of a partition is left. It spans
`segment.ms`, or `max.compaction.lag.ms` if that is less.

### Accepted, without effect

These describe how Kafka's brokers handle files and copies. They are stored and shown, so that Kafka's scripts run.
A value other than the default gives a warning with the reason. The records that are kept, and how safe they
are, do not depend on them.

{no_effect}

### Refused

Only the default is accepted, because another value asks for something that pylog does not do.

{refused}

## The log

For a whole log: `pylog config alter`.

{log}
"""


def reference_markdown() -> str:
    """The page `docs/topic-configs.md`."""
    topics = list(TOPIC_CONFIGS.values())
    return PAGE.format(
        in_force=_table(spec for spec in topics if spec.in_force),
        no_effect=_table((spec for spec in topics if spec.effect is Effect.NONE), "why it has no effect"),
        refused=_table((spec for spec in topics if spec.effect is Effect.REFUSED), "why, and what to do"),
        log=_table(CLUSTER_CONFIGS.values()),
    )


def _table(specs: Iterable[ConfigSpec], last: str = "meaning") -> str:
    rows = [f"| config | default | possible | {last} |", "|---|---|---|---|"]
    for spec in specs:
        default = f"`{format_value(spec.default)}`" if spec.default != "" else "empty"
        rows.append(f"| `{spec.name}` | {default} | {spec.kind.possible()} | {spec.doc} |")
    return "\n".join(rows)
