"""A wheel says what it is made of and by what, in the form of CycloneDX 1.6."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from codegen.build import dist_info, sbom

SHA256 = "3" * 64
SETTINGS = {
    "c++": "GNU 12.2.0", "c++ of nvcc": "GNU 11.4.0", "linker": "GNU 2.40", "nvcc": "13.0.88",
    f"archive {SHA256}": "pypi:causal-conv1d==1.7.0",
    f"archive {SHA256[:-1]}4": "https://example.org/far-1.0.tar.gz",
    "headers of package:yaml:include:pyyaml": "5" * 64,
}  # fmt: skip
CACHE = "CMAKE_CACHE_MAJOR_VERSION:INTERNAL=4\nCMAKE_CACHE_MINOR_VERSION:INTERNAL=1\n"
CACHE += "CMAKE_CACHE_PATCH_VERSION:INTERNAL=0\nCMAKE_MAKE_PROGRAM:FILEPATH=ninja\n"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's wheel; the project is the current folder."""
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["auditwheel"]\n')
    (tmp_path / "CMakeCache.txt").write_text(CACHE)
    monkeypatch.chdir(tmp_path)
    for variable in (*sbom._VARIABLES, "SOURCE_DATE_EPOCH"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "own-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("own/_pack/pack.json", json.dumps({"settings": SETTINGS}))
        archive.writestr("own-1.dist-info/METADATA", "Metadata-Version: 2.4\nName: own\nVersion: 1")
        archive.writestr("own-1.dist-info/RECORD", "")
    return path


def bill(wheel: Path, settings: str = "{}") -> dict[str, Any]:
    sbom.main([str(wheel), "--build-dir", ".", "--settings", settings])
    with zipfile.ZipFile(wheel) as archive:
        name = f"own-1.dist-info/{dist_info.BILL}"
        text = archive.read(name).decode()
        assert f"{name},sha256=" in archive.read("own-1.dist-info/RECORD").decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    loaded = json.loads(text)
    assert isinstance(loaded, dict)
    return loaded


def test_it_has_what_the_libraries_hold_and_what_built_them(wheel: Path) -> None:
    made = bill(wheel)
    held = {(c["name"], c.get("version")) for c in made["components"]}
    assert {
        ("causal-conv1d", "1.7.0"), ("far-1.0.tar.gz", None), ("libstdc++", "12.2.0"),
        ("cudart_static", "13.0"),
    } < held  # fmt: skip
    (archive,) = (c for c in made["components"] if c["name"] == "causal-conv1d")
    assert archive["hashes"] == [{"alg": "SHA-256", "content": SHA256}]
    assert "pyyaml" in {name.lower() for name, _ in held}
    (formula,) = made["formulation"]
    tools = {(c.get("description") or c["name"], c["version"]) for c in formula["components"]}
    assert {("c++", "12.2.0"), ("c++ of nvcc", "11.4.0"), ("nvcc", "13.0.88")} < tools
    assert ("cmake", "4.1.0") in tools
    assert {"auditwheel", "pyelftools"} < {name for name, _ in tools}  # what auditwheel requires


def test_it_names_the_time_the_settings_and_the_flags_but_no_path(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setenv("LDFLAGS", "-Wl,-O1")
    made = bill(wheel, '{"cmake.define.KERNELMINT_SLICES": "ON", "build-dir": "/home/me/build"}')
    assert made["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert {p["name"]: p["value"] for p in made["metadata"]["properties"]} == {
        dist_info.EPOCH: "1700000000",
        f"{dist_info.SETTING}cmake.define.KERNELMINT_SLICES": "ON",
        f"{dist_info.VARIABLE}LDFLAGS": "-Wl,-O1",
    }


def test_it_names_the_revision_of_a_clean_checkout_only(wheel: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *identity, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    git("init", "-q")
    assert "pedigree" not in bill(wheel)["metadata"]["component"]
    git("add", "pyproject.toml")
    git("commit", "-q", "-m", "one")
    assert bill(wheel)["metadata"]["component"]["pedigree"] == {
        "commits": [{"uid": git("rev-parse", "HEAD")}]
    }
    Path("pyproject.toml").write_text('[build-system]\nrequires = ["auditwheel", "mako"]\n')
    assert "pedigree" not in bill(wheel)["metadata"]["component"]
