"""A new family's folder: z = alpha * x + y, small enough to be read and then replaced."""

from __future__ import annotations

from pathlib import Path

from mako.template import Template

from codegen.emit.python_face import class_name
from codegen.spec.names import SNAKE, reserved
from codegen.spec.problems import UsageError, display_path

_TEMPLATES = Path(__file__).parent
_FILES = {
    "family.yaml": "family.yaml",
    "reference.py": "reference.py",
    "cpu.yaml": "cpu.yaml",
    "cpu.h": "cpu.h",
    "sm80.yaml": "sm80.yaml",
    "sm80.cuh": "sm80.cuh",
    "test_family.py": "test_{family}.py",
}


def create(family: str, specs: Path) -> list[Path]:
    """Writes the folder `specs`/`family` and returns its files. Refuses to overwrite anything."""
    if not SNAKE.match(family):
        raise UsageError(
            f"'{family}' cannot be a family's name: lower-case letters and digits, "
            "joined by single underscores"
        )
    if why := reserved(family):
        raise UsageError(f"'{family}' {why}: choose another name")
    folder = specs / family
    written = []
    try:
        folder.mkdir(parents=True)
        for template, name in _FILES.items():
            source = Template(filename=str(_TEMPLATES / f"{template}.mako"), strict_undefined=True)
            path = folder / name.format(family=family)
            text = source.render_unicode(family=family, class_name=class_name(family))
            path.write_text(str(text), encoding="utf-8")
            written.append(path)
    except FileExistsError:
        raise UsageError(f"{display_path(folder)} is already there") from None
    except OSError as error:
        raise UsageError(f"cannot write {display_path(folder)}: {error.strerror}") from None
    return written
