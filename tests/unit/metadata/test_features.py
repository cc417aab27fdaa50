"""Levels of features: a log that an older pylog cannot read says so, with both levels."""

from __future__ import annotations

import json

import msgspec
import pytest
from crc32c import crc32c

from simulation.levels import TOMORROW, supporting
from spark_log.errors import InvalidRequest, UnsupportedVersion
from spark_log.metadata import records as r
from spark_log.metadata.commands import UpdateFeature
from spark_log.metadata.features import METADATA_VERSION, SUPPORTED
from spark_log.metadata.formats.batch_format import BATCH_MAGIC, BATCH_VERSION, decode_batch, encode_batch
from spark_log.metadata.formats.checkpoint_format import decode_checkpoint, encode_checkpoint, state_json
from spark_log.metadata.maintenance.decide_maintenance import bootstrap_records
from spark_log.metadata.replay import next_version, replay, replay_records
from spark_log.metadata.state import State
from tests.unit.metadata.checkpoints import checkpoint_of
from tests.unit.test_pages import ROOT


def raised(level: int, name: str = METADATA_VERSION) -> r.Batch:
    return r.Batch(id="writer", time=1, records=(r.FeatureLevelRecord(name=name, level=level),))


def test_a_field_with_its_default_is_left_out_of_a_record() -> None:
    """A field that is added and not used does not keep an older pylog from reading the record."""
    line = encode_batch(r.Batch(id="w", time=1, records=(r.CommitRecord(producer="p", sequence=0, upload_epoch=1),)))
    assert json.loads(line.splitlines()[2]) == {"type": "commit", "producer": "p", "sequence": 0, "upload_epoch": 1}


def test_every_record_leaves_its_defaults_out() -> None:
    for kind in msgspec.inspect.type_info(r.AnyRecord).types:  # type: ignore[attr-defined]
        assert kind.cls.__struct_config__.omit_defaults, kind.cls


# Promise: format/metadata.md#levels
def test_a_log_whose_records_name_no_level_is_at_level_1() -> None:
    """A log without records will be at the newest, because its first batch says so."""
    assert next_version(State(), 1).levels == {METADATA_VERSION: 1}
    assert State().levels == SUPPORTED


def test_the_first_records_of_a_new_log_raise_it_to_the_newest_level() -> None:
    with supporting(TOMORROW):
        state = replay_records(next_version(State(), 1), bootstrap_records(State()))
        assert state.levels == {METADATA_VERSION: TOMORROW} == dict(state.features)
        assert bootstrap_records(state) == () == bootstrap_records(next_version(State(), 1))
    assert bootstrap_records(State()) == (), "every log is at level 1"


# Promise: format/metadata.md#levels
@pytest.mark.parametrize(("name", "level"), [(METADATA_VERSION, TOMORROW), ("of.tomorrow", 1)])
def test_a_record_of_an_unknown_level_is_refused_with_both_levels(name: str, level: int) -> None:
    data = encode_batch(raised(level, name))
    with pytest.raises(UnsupportedVersion, match=f"at level {level} of {name}, this pylog supports .*update pylog"):
        decode_batch(data, "meta/log/7.rec")


def test_records_of_an_unknown_level_are_refused_with_both_levels() -> None:
    """A batch that raises the level may have records of that level."""
    data = encode_batch(raised(TOMORROW))
    body = data.partition(b"\n")[2] + b'{"type":"of_tomorrow"}\n'
    data = b"%s %d %d %08x\n" % (BATCH_MAGIC, BATCH_VERSION, len(body), crc32c(body)) + body
    with pytest.raises(UnsupportedVersion, match=f"at level {TOMORROW} of {METADATA_VERSION}"):
        decode_batch(data, "meta/log/1.rec")


# Promise: format/metadata.md#levels
def test_a_checkpoint_of_an_unknown_level_is_refused_with_both_levels() -> None:
    """Also if it has fields that this pylog cannot read."""
    state = replay(State(), raised(TOMORROW))
    with pytest.raises(
        UnsupportedVersion, match=f"at level {TOMORROW} of {METADATA_VERSION}, this pylog supports up to"
    ):
        decode_checkpoint(encode_checkpoint(state), "meta/ckpt/7")
    data = checkpoint_of(json.loads(state_json(state)) | {"invented": 1})
    with pytest.raises(UnsupportedVersion, match=f"at level {TOMORROW} of {METADATA_VERSION}"):
        decode_checkpoint(data, "meta/ckpt/7")


# Promise: format/metadata.md#levels
def test_level_1_has_what_is_new_until_the_first_release() -> None:
    """Then this fails, and the next field needs a level."""
    changes, page = (
        " ".join((ROOT / name).read_text().split()) for name in ("CHANGELOG.md", "docs/format/metadata.md")
    )
    assert "0.1.0, not released yet" in changes
    assert "until the first release, what is new is added to it" in page
    assert SUPPORTED == {METADATA_VERSION: 1}


# Promise: format/metadata.md#levels
def test_a_level_is_never_lowered() -> None:
    """By replaying, whatever the records say."""
    state = replay_records(State(), [r.FeatureLevelRecord(name="x", level=3), r.FeatureLevelRecord(name="x", level=2)])
    assert dict(state.features) == {"x": 3}


@pytest.mark.parametrize("level", [0, TOMORROW])
def test_a_level_that_this_pylog_does_not_support_is_not_set(level: int) -> None:
    with pytest.raises(InvalidRequest, match=f"invalid level {level}"):
        UpdateFeature(name=METADATA_VERSION, level=level)(State(), 1)
    with pytest.raises(InvalidRequest, match=r"'x' is unknown: expected one of metadata\.version"):
        UpdateFeature(name="x", level=1)(State(), 1)
