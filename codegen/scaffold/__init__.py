"""The files that `new` and `init` write: a family small enough to be read and then replaced, and a
project around one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
import shutil
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from mako.template import Template

from codegen.core.problems import UsageError
from codegen.core.words import display_path
from codegen.emit.python_face import class_name
from codegen.spec.names import SNAKE, reserved

_TEMPLATES = Path(__file__).parent
_FAMILY = {
    "family.yaml": "family.yaml",
    "reference.py": "reference.py",
    "cpu.yaml": "cpu.yaml",
    "cpu.h": "cpu.h",
    "sm80.yaml": "sm80.yaml",
    "sm80.cuh": "sm80.cuh",
    "test_family.py": "test_{family}.py",
}
_FOLDERS = ("build", "generated", "kernel_specs", "tests")  # a project's
_PROJECT = {
    "pyproject.toml": "pyproject.toml",
    "CMakeLists.txt": "CMakeLists.txt",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "pre-commit-config.yaml": ".pre-commit-config.yaml",
    "ci.yml": ".github/workflows/ci.yml",
    "wheels.yml": ".github/workflows/wheels.yml",
    "package.py": "{name}/__init__.py",
    "test_package.py": "tests/test_{name}.py",
}


def create(family: str, specs: Path) -> list[Path]:
    """Writes the folder `specs`/`family`, z = alpha * x + y, and returns its files.

    Refuses to overwrite anything.
    """
    _check("a family's", family)
    values = {"family": family, "class_name": class_name(family)}
    return _write("family", _FAMILY, specs / family, values)


def create_project(
    name: str, folder: Path, family: str | None = None, *, bare: bool = False
) -> list[Path]:
    """Writes a project with the pack `name`, whose first family is `family`, or named after the
    project: no two packs in one process have families of one name. A bare project has no family.

    Returns its files. Refuses to overwrite anything.
    """
    _check("a package's", name)
    if why := _imported(name):
        raise UsageError(f"'{name}' {why}: choose another name")
    function = family or "scale_add"
    family = family or f"{name}_scale_add"
    _check("a family's", family)
    if not str(folder).isprintable():
        raise UsageError(f"{str(folder)!a} cannot be written into a file: choose another folder")
    if name == family:
        raise UsageError(f"'{name}' cannot name both the package and its family: use --family")
    values = {
        "name": name,
        "distribution": name.replace("_", "-"),
        "family": family,
        "function": function,
        "version": _version(),
        "bare": bare,
    }
    written = _write("project", _PROJECT, folder, values)
    if bare:
        (folder / "kernel_specs").mkdir()
        return written
    return [*written, *create(family, folder / "kernel_specs")]


def _imported(name: str) -> str | None:
    """Returns why a package of that name would shadow another module; None if it would not."""
    if name in _FOLDERS:
        return "is a folder of the project beside its package"
    if name in (*sys.stdlib_module_names, "test"):  # Python's own tests, which not every system has
        return "is a module of Python's standard library"
    spec = importlib.util.find_spec(name)
    required = [re.match(r"[\w.-]+", text) for text in _distribution().requires or ()]
    if name in [match[0].lower() for match in required if match] or (spec and spec.origin):
        return "is a module that is installed here, or that Kernelmint needs"
    return None


def _check(whose: str, name: str) -> None:
    if not SNAKE.match(name):
        raise UsageError(
            f"'{name}' cannot be {whose} name: lower-case letters and digits, joined by single "
            "underscores"
        )
    if why := reserved(name):
        raise UsageError(f"'{name}' {why}: choose another name")


def pip_options() -> list[str]:
    """Returns the options with which pip builds a project with this Kernelmint. The build is
    isolated if an index, or the folder of a wheel, has Kernelmint; PEP 610's record says so."""
    record = json.loads(_distribution().read_text("direct_url.json") or "{}")
    url = urllib.parse.urlsplit(record.get("url", ""))
    wheel = Path(urllib.request.url2pathname(url.path))
    if not record:
        return []
    if "archive_info" in record and url.scheme == "file" and wheel.is_file():
        return ["--find-links", str(wheel.parent)]
    return ["--no-build-isolation"]


def installing() -> list[str]:
    """Returns the commands that install a new project, in its folder, with this Kernelmint."""
    install = "pip install -e '.[test]'"
    match pip_options():
        case []:
            return [install]
        case ["--find-links", folder]:
            return [f"export PIP_FIND_LINKS={shlex.quote(folder)}", install]
    return [
        "pip install scikit-build-core",
        "python -m kernelmint.backend | xargs -r pip install",
        install.replace(" -e", " --no-build-isolation -e"),
    ]


def _version() -> str:
    """Returns Kernelmint's version, as a requirement names it: of two numbers."""
    version = re.match(r"\d+\.\d+", _distribution().version)
    assert version is not None
    return version[0]


def _distribution() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution("kernelmint")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            "Kernelmint is not installed in this Python, and a project's build needs it: run "
            f"pip install {shlex.quote(str(_TEMPLATES.parents[1]))}"
        ) from None


def _write(
    templates: str, names: Mapping[str, str], folder: Path, values: Mapping[str, object]
) -> list[Path]:
    written = []
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{display_path(folder)} is already there") from None
    except OSError as error:
        raise UsageError(f"cannot write {display_path(folder)}: {error.strerror}") from None
    try:
        for template, name in names.items():
            source = Template(
                filename=str(_TEMPLATES / templates / f"{template}.mako"), strict_undefined=True
            )
            path = folder / name.format(**values)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(source.render_unicode(**values)), encoding="utf-8")
            written.append(path)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(f"cannot write {display_path(folder)}: {error.strerror}") from None
    return written
