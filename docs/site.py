"""Builds the pages as a site with a sidebar and search: `make docs-site`.

`stage` copies the pages, and the files of the tree to which they link, into one folder with links that work there.
MkDocs makes the site of it.  The sidebar has the tables of docs/README.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OUT = ROOT / ".pylog"
"""Git ignores this folder."""
ELSEWHERE = "source"
"""Folder of the site for files that are not below docs/."""
NOT_IN_THE_SIDEBAR = ("By keyword",)
FOR_MAINTAINERS = DOCS / "promises.md"
"""A list of tests, which would fill the search with their names: the site does not have it."""

LINK = re.compile(r"(\]\()(?!https?://|#)([^)\s]+)(\))|(\b(?:src|srcset|href)=\")(?!https?://|#)([^\"]+)(\")")
CODE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)

CONFIG = """\
site_name: pylog
docs_dir: pages
site_dir: site
use_directory_urls: false
theme:
  name: material
  font: false
  features: [navigation.top, navigation.tracking, search.suggest, search.highlight, content.code.copy]
  palette:
    - {media: "(prefers-color-scheme: light)", scheme: default, toggle: {icon: material/weather-night, name: Dark}}
    - {media: "(prefers-color-scheme: dark)", scheme: slate, toggle: {icon: material/weather-sunny, name: Light}}
plugins: [search, offline]
markdown_extensions:
  - tables
  - attr_list
  - md_in_html
  - sane_lists
  - toc: {permalink: true, slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}}
  - pymdownx.highlight
  - pymdownx.superfences
validation:
  nav: {omitted_files: info, not_found: warn}
  links: {not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}
"""


def stage(folder: Path) -> None:
    """Fill a new folder with all pages, and with what they link to."""
    waiting, seen = sorted({*DOCS.rglob("*.md")} - {FOR_MAINTAINERS}), set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        target = folder / place_of(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix != ".md":
            shutil.copyfile(file, target)
            continue
        text = file.read_text(encoding="utf-8")
        waiting += [found for found in linked_files(text, file) if found not in seen]
        target.write_text(with_lists_apart(relinked(text, file)), encoding="utf-8")
    (folder / "decisions" / "README.md").write_text(list_of_decisions(), encoding="utf-8")


def place_of(file: Path) -> Path:
    """Path of a file of the tree in the site."""
    return file.relative_to(DOCS) if file.is_relative_to(DOCS) else ELSEWHERE / file.relative_to(ROOT)


def linked_files(text: str, page: Path) -> Iterator[Path]:
    """Files to which a page links; for a folder, its README.md."""
    for found in LINK.finditer(without_code(text)):
        target = file_of((found[2] or found[5]).partition("#")[0], page)
        if target is not None:
            yield target


def file_of(path: str, page: Path) -> Path | None:
    """The file behind a link on a page; None: the site does not have it, such as a folder without a README.md."""
    found = Path(os.path.normpath(page.parent / path))
    if found == FOR_MAINTAINERS:
        return None
    if found == DOCS / "decisions":
        return found / "README.md"
    if found.is_dir():
        return found / "README.md" if (found / "README.md").exists() else None
    return found


def without_code(text: str) -> str:
    return CODE.sub("", text)


def relinked(text: str, page: Path) -> str:
    """A page with links that work in the site.  A link to what the site does not have leads to its first page."""

    def replaced(found: re.Match[str]) -> str:
        before, link, after = found.group(1, 2, 3) if found[1] else found.group(4, 5, 6)
        path, hash_, anchor = link.partition("#")
        target = file_of(path, page)
        if target is None:
            return f"{before}{os.path.relpath('README.md', place_of(page).parent)}{after}"
        return f"{before}{os.path.relpath(place_of(target), place_of(page).parent)}{hash_}{anchor}{after}"

    return "".join(part if CODE.fullmatch(part) else LINK.sub(replaced, part) for part in CODE.split(text))


def with_lists_apart(text: str) -> str:
    """A page with an empty line before each list, which MkDocs needs and GitHub does not."""
    lines, inside = list[str](), False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            inside = not inside
        begins = not inside and re.match(r"([*-]|1\.) ", line)
        if begins and lines and lines[-1].strip() and not re.match(r" |([*-]|\d+\.) ", lines[-1]):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def list_of_decisions() -> str:
    """A page that lists all decision records."""
    rows = ["# Decisions", "", "Choices with their reasons, their costs, and the evidence that would refute them.", ""]
    for file in sorted((DOCS / "decisions").glob("*.md")):
        title = file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        rows.append(f"* [{title}]({file.name})")
    return "\n".join(rows) + "\n"


def sidebar() -> list[dict[str, object]]:
    """The pages, by the sections of docs/README.md.  Each is listed once, where it is named first."""
    found: list[dict[str, object]] = [{"Start": "README.md"}, {"Install and first steps": f"{ELSEWHERE}/README.md"}]
    listed = set[str]()
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        name, _, body = section.partition("\n")
        if name in NOT_IN_THE_SIDEBAR:
            continue
        rows: list[dict[str, str]] = []
        for label, path in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)\)", body):
            target = file_of(path, DOCS / "README.md")
            if target is not None and target.suffix == ".md" and (place := str(place_of(target))) not in listed:
                listed.add(place)
                rows.append({label.strip("`"): place})
        found.append({name: rows})
    return found


def configuration() -> str:
    """The text of mkdocs.yml."""
    return CONFIG + f"nav: {json.dumps(sidebar())}\n"


def build() -> int:
    """Make the site in .pylog/site.  The status is not 0 if a link leads nowhere."""
    shutil.rmtree(OUT / "pages", ignore_errors=True)
    stage(OUT / "pages")
    config = OUT / "mkdocs.yml"
    config.write_text(configuration(), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(config)]
    status = subprocess.run(command, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode
    if status == 0:
        print(f"open {OUT / 'site' / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(build())
