"""Pages lead somewhere, and somewhere leads to each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    """docs/README.md names all of them; decisions have a folder of their own."""
    named = {
        (ROOT / "docs" / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(ROOT / "docs/README.md"))
    }
    found = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"}
    assert found - {ROOT / "docs" / "README.md"} <= named
