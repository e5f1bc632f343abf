"""A wheel has the licences of all that it is made of, and names them."""

from __future__ import annotations

import base64
import hashlib
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from codegen.build import licences

METADATA = "Metadata-Version: 2.2\nName: own\nVersion: 1\nLicense-File: AUTHORS\n\nText\n\nMore\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a wheel, whose specs name a folder beside them and an archive."""
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "project"
    for path, text in (
        ("CMakeLists.txt", "kernelmint_add_pack(own GENERATED generated DESTINATION own/_pack)"),
        ("LICENSE", "of the project"),
        ("kernel_specs/a/vendored/NOTICE", "beside vendored sources"),
        ("third_party/up/include/up.h", ""),
        ("third_party/up/COPYING.md", "of up"),
        ("../far-1.0/csrc/inner/far.cu", ""),
        ("../far-1.0/csrc/inner/license.py", "no licence"),
        ("../far-1.0/csrc/Licence.txt", "of an inner library"),
        ("../far-1.0/LICENSE", "of far"),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    monkeypatch.chdir(root)
    specify(root)
    with zipfile.ZipFile(root / "own-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("own-1.dist-info/METADATA", METADATA)
        wheel.writestr("own-1.dist-info/RECORD", "own-1.dist-info/METADATA,sha256=x,1\n")
    return root


def specify(root: Path, include: str = "../third_party/up/include") -> None:
    """Packs the archive, and writes a manifest that names it."""
    archive = root.parent / "far-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(root.parent / "far-1.0", "far-1.0")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    far = {"archive": archive.as_uri(), "sha256": sha256, "path": "csrc/inner/far.cu"}
    build = {"include": [{"specs": "kernel_specs", "path": include}, {**far, "excerpt": "far.h"}]}
    manifest = {
        "version": 1, "selection": {"set": "default", "where": None}, "inputs": {}, "outputs": {},
        "spec_dirs": ["../kernel_specs"], "families": [{"build": build, "targets": []}],
    }  # fmt: skip
    (root / "generated").mkdir(exist_ok=True)
    (root / "generated/manifest.json").write_text(json.dumps(manifest))


def test_licences_of_all_sources_are_in_the_wheel_and_its_metadata(project) -> None:
    wheel = project / "own-1-py3-none-any.whl"
    assert licences.main([str(wheel)]) == 0
    with zipfile.ZipFile(wheel) as opened:
        texts = {name.partition("/")[2]: opened.read(name) for name in opened.namelist()}
    expected = {
        "LICENSE": b"of the project",
        "kernel_specs/a/vendored/NOTICE": b"beside vendored sources",
        "third_party/up/COPYING.md": b"of up",
        "far-1.0/LICENSE": b"of far",
        "far-1.0/csrc/Licence.txt": b"of an inner library",
    }
    assert (
        expected.items()
        <= {name.removeprefix("licenses/"): text for name, text in texts.items()}.items()
    )
    names = [name.removeprefix("licenses/") for name in texts if name.startswith("licenses/")]
    (kernelmints,) = set(names) - set(expected)
    assert kernelmints.startswith("kernelmint-")
    named = [f"License-File: {name}" for name in ("AUTHORS", *sorted(names))]
    head = ["Metadata-Version: 2.4", "Name: own", "Version: 1", *named]
    assert texts["METADATA"].decode() == "\n".join([*head, "", "Text", "", "More", ""])
    recorded = dict(line.rsplit(",", 2)[:2] for line in texts["RECORD"].decode().splitlines())
    for name, text in texts.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
        expected_hash = "" if name == "RECORD" else f"sha256={digest}"
        assert recorded.pop(f"own-1.dist-info/{name}") == expected_hash
    assert not recorded


def test_the_metadata_that_a_frontend_asks_for_is_the_wheels(project) -> None:
    folder = project / "own-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    wheel = project / "own-1-py3-none-any.whl"
    assert licences.main([str(folder)]) == licences.main([str(wheel)]) == 0
    with zipfile.ZipFile(wheel) as opened:
        for name in opened.namelist():
            if not name.endswith("/RECORD"):
                assert (project / name).read_bytes() == opened.read(name)


def test_an_archive_without_a_licence_is_an_error_that_names_the_file_to_add(
    project, capfd
) -> None:
    for name in ("far-1.0/LICENSE", "far-1.0/csrc/Licence.txt"):
        (project.parent / name).unlink()
    specify(project)
    wheel = project / "own-1-py3-none-any.whl"
    assert licences.main([str(wheel)]) == 1
    wrong = "far-1.0.tar.gz, which a spec's `build:` names, has no LICENSE, LICENCE, NOTICE or"
    error = capfd.readouterr().err
    assert wrong in error
    assert "lay its licence into kernel_specs/LICENSE.far-1.0.tar.gz" in error
    (project / "kernel_specs/LICENSE.far-1.0.tar.gz").write_text("of far")
    assert licences.main([str(wheel)]) == 0


def test_a_project_and_foreign_folders_without_a_licence_are_warned_of(project, capfd) -> None:
    (project / "third_party/up/COPYING.md").unlink()
    (project / "LICENSE").unlink()
    assert licences.main([str(project / "own-1-py3-none-any.whl")]) == 0
    error = capfd.readouterr().err
    assert (
        f"the project has no LICENSE, LICENCE, NOTICE or COPYING file: add {project}/LICENSE"
        in error
    )
    assert "if others wrote it, add third_party/up/include/LICENSE" in error
