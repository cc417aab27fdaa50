"""Kafka's rules for the names of topics.  Pure."""

from __future__ import annotations

import re
from hashlib import blake2b

from spark_log.errors import InvalidTopic
from spark_log.text import shown

TOPIC_NAME_MAX = 249
FILE_PART_MAX = 128


def check_topic_name(name: str) -> None:
    """Kafka's rules: 1 to 249 of [a-zA-Z0-9._-], and not '.' or '..'.  Raises InvalidTopic that names the violation."""
    if not isinstance(name, str):
        raise not_text(name)
    if not name:
        raise InvalidTopic("topic name is empty; give 1 to 249 of the characters a-z A-Z 0-9 . _ -")
    if name in (".", ".."):
        raise InvalidTopic(f"topic name {name!r} is a directory's name; add a letter or a digit")
    if wrong := sorted(set(re.findall(r"[^a-zA-Z0-9._-]", name))):
        listed = " ".join("a space" if character == " " else repr(character) for character in wrong)
        raise InvalidTopic(f"topic name {name!r} has {listed}; expected a-z A-Z 0-9 . _ -")
    if len(name) > TOPIC_NAME_MAX:
        raise InvalidTopic(f"topic name {name[:40]!r}… has {len(name)} characters; expected at most {TOPIC_NAME_MAX}")


def not_text(name: object) -> InvalidTopic:
    """The error for a value in place of a name."""
    return InvalidTopic(f"topic name {shown(name)} is not text; give a str, such as 'orders'")


def file_part(name: str) -> str:
    """A name for a part of the name of a file, which has 255 bytes at most: a long one is cut, and gets a hash."""
    if len(name) <= FILE_PART_MAX:
        return name
    return f"{name[: FILE_PART_MAX - 17]}-{blake2b(name.encode(), digest_size=8).hexdigest()}"


def collision_key(name: str) -> str:
    """Two topic names collide if their keys are equal: Kafka's metrics do not distinguish '.' and '_'."""
    return name.replace(".", "_")
