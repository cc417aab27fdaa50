"""docs/api.md is what the docstrings say, and leaves out nothing that `spark_log` exports."""

from __future__ import annotations

import re
from pathlib import Path

import spark_log
from docs.api_reference import CLASSES, INTERNAL, reference_markdown

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


# Promise: api.md#python-api
def test_the_page_is_what_the_docstrings_say() -> None:
    """`make docs` writes the page."""
    assert PAGE.read_text(encoding="utf-8") == reference_markdown()


# Promise: api.md#python-api
def test_every_name_that_is_exported_is_on_the_page() -> None:
    """Functions, classes and types; `errors` is a section."""
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"\bspark_log\.(\w+)|^## (\w+)|^\*\*(\w+)\*\*", text, re.MULTILINE))
    found = {name for names in named for name in names if name}
    assert set(spark_log.__all__) - found == set()


def test_what_is_left_out_exists() -> None:
    """No name stays in the list after its method is gone."""
    assert set(INTERNAL) <= set(CLASSES)
    for kind, names in INTERNAL.items():
        assert names <= set(vars(kind))
