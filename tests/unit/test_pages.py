"""Pages lead somewhere, and somewhere leads to each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_log.configs.settings import CLUSTER_CONFIGS, TOPIC_CONFIGS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")


def prose(page: Path) -> str:
    """Without blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file that is there, and a heading in it."""
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_among_the_pages() -> None:
    """docs/README.md names all of them but the list for maintainers; decisions have a separate folder."""
    named = {
        (ROOT / "docs" / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(ROOT / "docs/README.md"))
    }
    found = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"}
    assert found - {ROOT / "docs" / "README.md", ROOT / "docs" / "promises.md"} <= named


# Promise: testing.md#the-suite
def test_every_make_target_on_the_pages_exists() -> None:
    """`make X` in text and in blocks."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^)make ([a-z0-9-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= targets, page


# Promise: topic-configs.md#the-log
def test_every_config_on_the_pages_exists() -> None:
    """Names with dots that end as configs do are those of topics, of a log, of conf/coordinator.ini, or options of a
    read or a write.
    """
    options = re.findall(r"\| `([a-z.]+)` \|", (ROOT / "docs/options.md").read_text(encoding="utf-8"))
    settings = re.findall(r"^#?([a-z.]+) =", (ROOT / "conf/coordinator.ini").read_text(), re.MULTILINE)
    known = {*TOPIC_CONFIGS, *CLUSTER_CONFIGS, *options, *settings}
    ends = "ms|bytes|minutes|enable|policy|interval|partitions|type|delay|timeout|after|every"
    for page in PAGES[2:]:
        named = set(re.findall(rf"`([a-z]+(?:\.[a-z]+)*\.(?:{ends}))(?:=[^`]*)?`", prose(page)))
        unknown = {name for name in named - known if not name.startswith(("kafka.", "spark.", "storage."))}
        assert not unknown, f"{page.name} names {sorted(unknown)}"
