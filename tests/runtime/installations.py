"""The package, and packs, installed as plain files."""

import os
import shutil
import sys
from pathlib import Path

import runtime
from runtime import _native, packs
from tests import warm_python

SOURCE = Path(runtime.__file__).parent
(OWN,) = (pack for pack in packs.all_packs() if pack.name == "kernelmint")


def copy_of(tmp_path, *, extension):
    """The package as plain files in `tmp_path`, with or without what a build adds."""
    package = tmp_path / "runtime"
    ignored = shutil.ignore_patterns("*.so", "include", "pack", "src")
    shutil.copytree(SOURCE, package, ignore=ignored)
    # The runtime reads codegen's expression language, and finds packs with it.
    shutil.copytree(SOURCE.parent / "codegen", tmp_path / "codegen", ignore=ignored)
    # Building on demand reads the flags of compilers.
    cmake = "kernelmint/cmake"
    shutil.copytree(SOURCE.parent / cmake, tmp_path / cmake)
    if extension:
        shutil.copy(_native.__file__, package)
        install_pack(tmp_path, "kernelmint")
    return package


def install_pack(site, name, distribution=None):
    """A copy of Kernelmint's own pack, as if a distribution had installed it into `site`."""
    distribution = distribution or name
    shutil.copytree(OWN.folder, site / name / "_pack")
    info = site / f"{distribution}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[kernelmint.packs]\n{name} = {name}._pack\n")
    return site / name / "_pack"


def import_copy(tmp_path, code="import runtime", beside=None, **environment):
    """Runs `code` against the copy: -S and an explicit path keep an editable install's hook out."""
    copies = [str(folder) for folder in (tmp_path, beside) if folder is not None]
    paths = os.pathsep.join([*copies, *(p for p in sys.path if p.endswith("-packages"))])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    return warm_python.run(code, folder=tmp_path, environment=environment, site=False)


def last_line(result):
    return result.stderr.strip().splitlines()[-1]
