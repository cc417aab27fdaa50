"""The site of the pages: its links lead to files that it has, and its sidebar has every page."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs import site


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    site.stage(folder)
    return folder


def test_every_link_leads_to_a_file_of_the_site(staged: Path) -> None:
    """Also those to files outside of docs/."""
    broken = []
    for page in staged.rglob("*.md"):
        for found in site.LINK.finditer(site.without_code(page.read_text(encoding="utf-8"))):
            path = (found[2] or found[5]).partition("#")[0]
            if not (page.parent / path).is_file():
                broken.append(f"{page.relative_to(staged)}: {path}")
    assert broken == []


def test_the_sidebar_has_every_page_once(staged: Path) -> None:
    """Decisions have one list."""
    sections = [entry for section in site.sidebar() for entry in section.values()]
    listed = [section for section in sections if isinstance(section, str)]
    listed += [path for section in sections if isinstance(section, list) for row in section for path in row.values()]
    assert len(listed) == len(set(listed))
    pages = {str(page.relative_to(staged)) for page in staged.rglob("*.md") if page.parent.name != "decisions"}
    outside = {"source/examples/README.md", "source/CHANGELOG.md"}
    assert pages - outside == {*listed} - outside - {"decisions/README.md"}


def test_a_link_is_that_of_the_site() -> None:
    """Links outside of docs/, to a folder, to a heading, and in code."""
    page = site.DOCS / "tasks" / "replay.md"
    text = "[a](../../jobs/admin.py) [b](../service.md#groups) [c](#here) [d](../../conf)\n```\n[e](nothing.md)\n```\n"
    assert site.relinked(text, page) == (
        "[a](../source/jobs/admin.py) [b](../service.md#groups) [c](#here) [d](../README.md)\n"
        "```\n[e](nothing.md)\n```\n"
    )
    assert site.with_lists_apart("Text:\n* a\n* b\n") == "Text:\n\n* a\n* b\n"


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is missing: `make docs-site` installs it")
def test_mkdocs_finds_no_broken_link(staged: Path) -> None:
    """It checks headings, too."""
    config = staged.parent / "mkdocs.yml"
    config.write_text(site.configuration(), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (staged.parent / "site" / "search").is_dir()
    shutil.rmtree(staged.parent / "site")
