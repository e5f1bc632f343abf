"""Sources of other projects, by pin: fetched once, checked, never run."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from codegen import archives, build_paths

SETUP = (
    "import pathlib; pathlib.Path('/tmp/kernelmint-setup-was-run').touch(); raise SystemExit(1)\n"
)
PYPI = "pypi:Some.Kernels==1.0"


def archive(path: Path, files: dict[str, str]) -> str:
    """Writes an archive; its hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, text in files.items():
                zipped.writestr(name, text)
    else:
        with tarfile.open(path, "w:gz") as packed:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                packed.addfile(entry, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("PIP_", "KERNELMINT_SOURCES"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("SETUP_RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path, monkeypatch) -> str:
    """An index that pip is set to, with one source distribution and a wheel; the former's hash."""
    folder = tmp_path / "simple/some-kernels"
    files = {"setup.py": SETUP, "csrc/kernel.h": "int kernel;\n"}
    made = {f"some_kernels-1.0/{name}": text for name, text in files.items()}
    sha256 = archive(folder / "some_kernels-1.0.tar.gz", made)
    (folder / "some_kernels-1.0-py3-none-any.whl").write_bytes(b"")
    links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in sorted(folder.iterdir()))
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    return sha256


def test_a_source_distribution_of_the_index_that_pip_is_set_to(index, cache, tmp_path, capfd):
    entry = {"archive": PYPI, "sha256": index, "path": "csrc"}
    found = build_paths.find(entry, {})
    assert [path.name for path in found.iterdir()] == ["kernel.h"]
    assert capfd.readouterr().err == f"fetching {PYPI}\n"
    (tmp_path / "simple").rename(tmp_path / "gone")
    assert build_paths.find({**entry, "path": "csrc/kernel.h"}, {}) == found / "kernel.h"
    assert capfd.readouterr().err == ""
    assert not os.access(found / "kernel.h", os.W_OK) or os.geteuid() == 0
    assert not (tmp_path / "ran").exists()


def test_cmake_asks_for_the_same(index, tmp_path):
    command = [sys.executable, build_paths.__file__, f"archive:{index}:csrc:{PYPI}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == str(archives.find(PYPI, index, "csrc"))


def test_a_machine_without_a_network(index, cache, tmp_path, monkeypatch):
    laid = archives.lay(PYPI, index, tmp_path / "sources")
    assert laid.name == "some_kernels-1.0.tar.gz"
    before = laid.stat()
    assert archives.lay(PYPI, index, tmp_path / "sources").stat().st_ino == before.st_ino
    (tmp_path / "simple").rename(tmp_path / "gone")
    with pytest.raises(archives.ArchiveError, match=r"KERNELMINT_SOURCES"):
        archives.folder(PYPI, index)
    monkeypatch.setenv("KERNELMINT_SOURCES", f"{tmp_path / 'absent'}{os.pathsep}{laid.parent}")
    assert (archives.folder(PYPI, index) / "setup.py").read_text() == SETUP


@pytest.mark.parametrize("name", ["v1.2.tar.gz", "v1.2.zip"])
def test_a_file_by_its_address(tmp_path, cache, name):
    sha256 = archive(tmp_path / name, {"top/a.h": "", "top/b/c.h": "1"})
    url = (tmp_path / name).as_uri()
    assert archives.find(url, sha256, "b/c.h").read_text() == "1"
    with pytest.raises(archives.ArchiveError, match=rf"{url} \(sha256 {sha256}\) has no d, which"):
        archives.find(url, sha256, "d")


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_what_is_not_what_was_pinned(tmp_path, cache, damage):
    path = tmp_path / "v1.2.tar.gz"
    sha256 = archive(path, {"top/a.h": "a" * 1000})
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-10] if damage == "truncated" else content[:-1] + b"x")
    with pytest.raises(archives.ArchiveError) as caught:
        archives.folder(path.as_uri(), sha256)
    assert "v1.2.tar.gz" in str(caught.value)
    assert sha256 in str(caught.value)
    assert list((cache / "sources").iterdir()) == []  # nothing of it stays
    path.write_bytes(content)
    assert archives.folder(path.as_uri(), sha256).is_dir()


@pytest.mark.parametrize("content", [b"not an archive", None])
def test_what_cannot_be_unpacked_or_leads_elsewhere(tmp_path, content):
    path = tmp_path / "v1.tar.gz"
    if content is not None:
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
    else:
        sha256 = archive(path, {"../../escaped": "x"})
    with pytest.raises(archives.ArchiveError, match=rf"{sha256}\): v1\.tar\.gz cannot be unpacked"):
        archives.folder(path.as_uri(), sha256)
    assert not list(tmp_path.rglob("escaped"))


def test_the_index_has_no_such_release(index):
    with pytest.raises(archives.ArchiveError, match=r"distribution Some\.Kernels==2") as caught:
        archives.folder("pypi:Some.Kernels==2.0", index)
    assert index in str(caught.value)


def test_the_cache_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(archives.ArchiveError, match=rf"{PYPI} \(sha256 {64 * '0'}\): cannot write"):
        archives.folder(PYPI, 64 * "0")


def test_sources_fetches_ahead(workspace, index, tmp_path):
    workspace.edit("sm80.yaml", "budget: {spill_bytes: 0}\n", "")
    path = workspace.demo / "family.yaml"
    pin = f"{{pypi: Some.Kernels, version: '1.0', sha256: {index}}}"
    build = f"{{archives: {{up: {pin}}}, include: [{{archive: up, path: csrc}}]}}"
    path.write_text(f"{path.read_text()}build: {build}\n")
    result = workspace.run("sources")
    assert result.stdout == f"{PYPI}  cache/sources/{index}/some_kernels-1.0\n"
    result = workspace.run("sources", "--to", "laid")
    assert result.stdout == f"{PYPI}  laid/some_kernels-1.0.tar.gz\n"
    (tmp_path / "simple").rename(tmp_path / "gone")
    result = workspace.run("sources", "--to", "elsewhere")
    assert result.status == 2
    assert PYPI in result.stderr
