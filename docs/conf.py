"""The site of README and the docs: `make docs` builds it with Sphinx, which reads this file.

Its pages are the repository's own files; docs/api.rst adds a reference made of the docstrings.
"""

from __future__ import annotations

import re
import shutil
from itertools import groupby
from pathlib import Path

from sphinx.application import Sphinx

import kernelmint

project = "Kernelmint"
author = "The Kernelmint authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
include_patterns = ["*.md", "docs/*.md", "docs/*.rst", "examples/*/README.md"]
exclude_patterns = [".*", "build", "dist", "generated"]
root_doc = "README"
highlight_language = "text"  # of indented blocks: commands and what they print
default_role = "literal"  # `x` in docstrings is code, as in Markdown
myst_heading_anchors = 4  # named as where a repository shows its Markdown
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
linkcheck_anchors = False  # pages that are made by scripts have none that can be seen
linkcheck_timeout = 30

html_title = project
html_theme = "furo"
html_favicon = "images/icon.svg"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False

PAGES = {
    "Begin": "docs/own_kernels docs/adding_a_family docs/building docs/wheels docs/slices"
    " docs/models docs/moved",
    "Reference": "docs/api docs/runtime docs/on_demand docs/specs docs/expressions docs/launches"
    " docs/headers",
    "Tools": "docs/ptx-report docs/ptx-report-anywhere docs/tuning docs/debugging",
    "How kernels work": "docs/sm80 docs/sm90a docs/backward docs/decoding docs/block_sparse",
    "What was measured": "docs/performance docs/tested",
    "Examples": "examples/flash_attn/README examples/causal_conv1d/README"
    " examples/torch_scatter/README examples/bitsandbytes/README examples/apex/README"
    " examples/cutlass_gemm/README",
    "The project": "docs/architecture CONTRIBUTING docs/security CHANGELOG",
}


def add_lists(app: Sphinx, page: str, text: list[str]) -> None:
    """Adds the list of all pages to the front page, and the lists of public names to the API."""
    if page == root_doc:
        for caption, pages in PAGES.items():
            text[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n"
            text[0] += "\n".join(f"/{name}" for name in pages.split()) + "\n```\n"
    if page == "docs/api":
        lists: dict[str, str] = {"function": "", "class": "", "exception": ""}
        for name in [*kernelmint.__all__, "register_operators"]:
            of = getattr(kernelmint, name)
            is_error = isinstance(of, type) and issubclass(of, Exception)
            kind = "exception" if is_error else "class" if isinstance(of, type) else "function"
            members = "   :members:\n" if kind == "class" else ""
            lists[kind] += f".. auto{kind}:: kernelmint.{name}\n{members}"
        text[0] = text[0].format(**lists)


def translate(
    app: Sphinx, what: str, name: str, of: object, options: object, text: list[str]
) -> None:
    """Makes of a docstring's Markdown what Sphinx reads.

    An indented block after an empty line is code; lines that each begin with a name and a colon,
    as generated docstrings have for arguments, are a list; a star is a star.
    """
    paragraphs = [list(lines) for full, lines in groupby(text, bool) if full]
    text.clear()
    for lines in paragraphs:
        if lines[0].startswith("    "):
            text += ["::", "", *lines, ""]
            continue
        listed = re.match(r"[a-z]\w*: ", lines[0])
        if listed:
            lines = [re.sub(r"^(Requires )?([^:]+): ", r"\1`\2`: ", line) for line in lines]
        prose = re.sub(r"(`[^`]*`)|\*", lambda m: m[1] or r"\*", "\n".join(lines)).split("\n")
        text += [*(f"* {line}" if listed else line for line in prose), ""]


def add_index(app: Sphinx, error: Exception | None) -> None:
    """The address of a folder shows the front page."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def setup(app: Sphinx) -> None:
    """Connects the functions above."""
    app.connect("source-read", add_lists)
    app.connect("autodoc-process-docstring", translate, priority=400)  # before napoleon
    app.connect("build-finished", add_index)
