"""Commands of `pylog`, good and bad, in the order in which they are given on one log, after the calls of `calls.py`.

FOLDER stands for the deployment's own folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from tests.cli.commands import Pylog
from tests.contract.deployments import COORDINATOR, QUORUM, Deployment, normalised

SERVED = (COORDINATOR, QUORUM)
METADATA = "the files of the metadata are on the storage, or with the nodes of the quorum"
DIFFERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cluster info -o json": ("it has the address of the coordinator", SERVED),
    "cluster health": ("it asks the coordinators", SERVED),
    "cluster release": ("the URL has to be that of the storage", SERVED),
    "checkpoint": (METADATA, (QUORUM,)),
    "repair --dry-run": (METADATA, SERVED),
    "move FOLDER/elsewhere --dry-run": ("the URL has to be that of the storage", SERVED),
}
"""As for calls."""

COMMANDS = r"""
topic create shop -p 2 -c retention.ms=50000000000
topic create shop
topic create 'a shop'
topic create shop2 -r 9
topic create shop2 --assign x
topic create shop2 -c retention.m=1
topic create shop2 --assign 0:0,0:0
topic create shop2 -p 3
topic create forms --schema 'id BIGINT, name STRING'
topic create forms2 --schema 'id NUMBER'
produce shop --key-delimiter : < k1:v1|k2:v2|k3:v3|k1:v4
produce shop -p 9 < x
produce nope < x
produce forms < {"id": 1, "name": "x"}|{"id": 2}
produce forms < {"id": "x"}
produce __consumer_offsets < x
consume shop -f '%k %v\n'
consume shop -g crew -f '%p:%o %k %v\n'
consume shop -g crew
consume shop -o latest-1 -p 0 -f '%v\n'
consume shop --latest -f '%k %v\n'
consume nope
consume shop -p 9
consume forms
consume --include 'sh.*' -n 1 -f '%t\n'
topic list -o json
topic describe shop -o json
topic describe shp
topic alter shop -p 3 -c max.message.bytes=9000000
topic alter shop -p 1
topic alter shop -c nope=1
topic alter shop --unset max.message.bytes
topic alter shop -r 9
topic alter forms --schema 'id BIGINT, name STRING, more INT'
topic alter forms --schema 'id STRING'
topic schema forms --history
topic schema shop
topic offsets shop
topic offsets shop --at latest-1
topic offsets shop --at @1970-01-01T00:00Z
topic offsets shp
topic trim shop --to 99 --yes
topic trim shop --to 1 -p 0 --yes
topic trim shop --to 1 -p 0
topic erase shop --key k3 --dry-run -o json
topic erase shop --key k3 --yes -o json
topic erase shp --key k3 --yes
topic delete shop2
topic delete shop2 --dry-run
topic delete shop2 --yes
topic delete shop2 --yes
config describe
config describe --topic shop
config describe --topic shp
config alter -c num.partitions=3
config alter -c nope=3
config alter --unset num.partitions
config alter --topic shop -c retention.ms=x
config alter --topic shop -c flush.ms=7
group list -o json
group describe crew -o json
group describe crow
group describe crew --export
group lag crew -o json
group lag crow
group seek crew --to earliest --yes
group seek crew --to 99 --topic shop:0 --yes
group seek crew --to earliest --topic shp --yes
group seek crow --to earliest --yes
group seek crow --to earliest --topic shop --dry-run
group seek crew --shift-by 1 --yes
group seek crew --from-file - --yes < shop,0,1|shop,1,0
group seek crew --from-file - --yes < shop,9,1
group seek crew --to-group crow --yes
group remove-members crew --yes
group remove-members crow --yes
group delete crew --dry-run
group delete crew --yes
group delete crew --yes
transaction list
transaction describe etl -o json
transaction describe no
transaction abort etl --yes
transaction abort no --yes
cluster info -o json
cluster upgrade --yes
cluster reset-clock --yes
cluster release
broker list -o json
broker add 5 --root FOLDER/disk5 --rack r
broker add 5 --root FOLDER/disk5 --rack r
broker add 5 --root FOLDER/disk6
broker add 0 --root FOLDER/disk6
broker add 6 --root FOLDER/records
broker alter 5 --rack s
broker alter 0 --drained
broker alter 9 --rack s
broker describe 5 -o json
broker describe 9
broker fence 5 --reason why
broker fence 5
broker fence 0
broker unfence 5
broker unfence 5
broker drain 5
broker drain 9
broker replace 5 --yes
broker replace 0 --yes
broker remove 5
broker remove 5 --yes
broker remove 5 --yes
elect preferred
elect preferred shp
elect unclean --yes
reassign list
reassign generate -t shop --brokers 9
reassign execute - < {"version":1,"partitions":[{"topic":"shop","partition":0,"replicas":[9]}]}
reassign execute - < {"version":1}
reassign verify - < {"version":1,"partitions":[{"topic":"shop","partition":0,"replicas":[0]}]}
reassign cancel - < {"version":1,"partitions":[{"topic":"shop","partition":0,"replicas":[9]}]}
plan shop -o json
plan shp
metadata shell ls /topics/byName
metadata shell ls /nope
maintain --dry-run
merge
gc --dry-run
verify
replicate
cluster health
checkpoint
repair --dry-run
mirror status FOLDER/mirror
move FOLDER/elsewhere --dry-run
nope
"""

_VARYING = (
    (
        re.compile(
            r'"([a-z_]*bytes|lag_ms|size|last_timestamp|time_ms|version|epoch|gone_by_ms|checkpoint|generation|coordinator_epoch)": -?\d+'
        ),
        r'"\1": N',
    ),
    (re.compile(r"\b\d[\d,.]* (bytes|B|KB|kB|MB|ms|s)\b"), "SIZE"),
    (re.compile(r"\d+ versions? old"), "N versions old"),
    (re.compile(r"quorum copy .*\n"), ""),
    (re.compile(r"(?m)^coordinator ADDRESS true (leads|stands by), .*\n"), ""),
)
"""Compressed sizes depend on the time, versions and generations on what a coordinator writes, and there are as many
coordinators as there are nodes."""


def given() -> list[str]:
    return COMMANDS.strip().splitlines()


def said(deployment: Deployment, line: str) -> str:
    """The exit status of a command, and what it prints."""
    command, _, stdin = line.replace("FOLDER", str(deployment.folder)).partition(" < ")
    result = Pylog(deployment.url).run(*shlex.split(command), stdin=stdin.replace("|", "\n") if stdin else None)
    text = normalised(deployment, f"{result.exit_code}\n{result.stdout}\n{result.stderr}")
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text
