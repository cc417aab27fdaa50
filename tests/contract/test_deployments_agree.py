"""A user gets the same from a log that is embedded, behind a coordinator, and in a quorum, also if answers are lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.contract.calls import DIFFERS as CALLS_DIFFER
from tests.contract.calls import UNTYPED, calls
from tests.contract.commands import DIFFERS as COMMANDS_DIFFER
from tests.contract.commands import given, said
from tests.contract.deployments import RAW, Deployment, deployments, outcome

Outcomes = Mapping[str, str]
"""By deployment; the first one is embedded."""


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Deployment]]:
    with deployments(tmp_path_factory.mktemp("contract")) as found:
        yield found


def disagreements(name: str, found: Outcomes, differing: Sequence[str]) -> Iterator[str]:
    """
    differing:  the deployments that should give something else than the first one, each the same.
    """
    (_, embedded), *others = found.items()
    expected = {other: found[differing[0]] if other in differing else embedded for other, _ in others}
    wrong = {other: text for other, text in others if text != expected[other]}
    if wrong:
        yield f"{name}\n  {embedded}\n" + "".join(f"  {other}: {text}\n" for other, text in wrong.items())
    if differing and found[differing[0]] == embedded:
        yield f"{name}: does not differ any more\n"


def compared(
    found: Mapping[str, Outcomes], differs: Mapping[str, tuple[str, Sequence[str]]], problems: Sequence[str] = ()
) -> None:
    """
    differs:  by name, the reason why some deployments give something else, and which.
    """
    wrong = [text for name, one in found.items() for text in disagreements(name, one, differs.get(name, ("", ()))[1])]
    wrong += [f"{name}: there is no such call" for name in differs.keys() - found.keys()]
    if problems or wrong:
        pytest.fail("\n".join([*problems, *wrong]), pytrace=False)


# Promise: service.md#a-coordinator, service.md#leadership
def test_calls_give_the_same(deployed: Sequence[Deployment]) -> None:
    """Results, or classes and texts of errors, and warnings.  All errors are those of pylog."""
    table = list(calls())
    assert len(dict(table)) == len(table)
    found = {name: {one.name: "" for one in deployed} for name, _ in table}
    for one in deployed:
        for name, call in table:
            found[name][one.name] = outcome(one, call)
    raw = {name for name, one in found.items() if any(text.startswith(RAW) for text in one.values())}
    compared(found, CALLS_DIFFER, [f"{name}: {found[name]}" for name in sorted(raw ^ UNTYPED.keys())])


# Promise: service.md#a-coordinator
def test_commands_say_the_same(deployed: Sequence[Deployment]) -> None:
    """Exit status, output and messages."""
    some = deployed[:3]
    found: dict[str, dict[str, str]] = {}
    for number, line in enumerate(given()):
        found[line if line not in found else f"{line} ({number})"] = {one.name: said(one, line) for one in some}
    compared(found, COMMANDS_DIFFER)
