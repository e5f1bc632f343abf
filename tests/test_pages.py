"""Links of the pages lead somewhere, to the heading they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import EXAMPLES, PAGES, ROOT


def anchors(page: Path) -> Iterator[str]:
    """The names by which headings are linked to: lower case, words joined by hyphens."""
    for heading in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"`[^`\n]*`", "", text)
        for link in sorted(set(re.findall(r"\]\(([^)]+)\)", text))):
            if "://" not in link:
                yield page, link


@pytest.mark.parametrize(
    "file",
    [*PAGES, *(ROOT / "codegen/scaffold").rglob("*.mako"), *(ROOT / "examples").rglob("*.py")],
    ids=lambda file: file.relative_to(ROOT).as_posix(),
)
def test_people_import_kernelmint(file: Path) -> None:
    """Another module may be called runtime, and would be taken in silence. A front imports runtime:
    it is the runtime that imports a front."""
    text = file.read_text(encoding="utf-8")
    if "front.py" in file.name or file.name == "adding_a_family.md":
        text = re.sub(r"^from runtime import choice.*", "", text, flags=re.M)
    imported = r"^\s*(?:>>> )?(?:from |import (?:.*, )?)runtime\b"
    assert not re.search(imported, text, re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "link"), [pytest.param(*found, id=f"{found[0].name}:{found[1]}") for found in links()]
)
def test_every_link_leads_somewhere(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    assert target.exists()
    assert not anchor or anchor in set(anchors(target))


def test_a_dead_anchor_is_seen() -> None:
    assert "two-commands" in set(anchors(ROOT / "README.md"))
    assert "three-commands" not in set(anchors(ROOT / "README.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_short_but_for_tables_pictures_and_what_programs_print(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = [line for line in text.splitlines() if not line.startswith(("|", "    ", "!["))]
    assert [line for line in prose if len(line) >= 140] == []


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: page.parent.name + page.name)
def test_a_page_begins_with_whom_it_is_for(page: Path) -> None:
    before = page.read_text(encoding="utf-8").partition("\n## ")[0]
    assert re.search(r"\bis\s+(an\s+example\s+)?for\s+(those|kernel)\b", before)
