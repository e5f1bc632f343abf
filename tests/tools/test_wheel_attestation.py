"""Who published a file, by a real attestation, checked without a network.

data/attestation has a source distribution of pypi-attestations (Apache-2.0), as its workflow
published it, with its attestation, and what the index made of that.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from codegen.core.ptxas_rows import ReportError
from kernelmint.__main__ import main as kernelmint
from tools.wheels.attestation import commit_of

pytest.importorskip("pypi_attestations")

FILE = Path(__file__).parent / "data/attestation/pypi_attestations-0.0.19.tar.gz"
ATTESTATION = FILE.with_name(f"{FILE.name}.publish.attestation")
PUBLISHER = "trailofbits/pypi-attestations/release.yml"
COMMIT = "08802efe1f8e5fec4ad842d6b8ce97656092ee72"


@pytest.mark.parametrize("of", [ATTESTATION, FILE.with_name(f"{FILE.name}.provenance")])
def test_the_commit_of_what_a_workflow_published_is_known(of: Path) -> None:
    assert commit_of(FILE, of, PUBLISHER, offline=True) == COMMIT


@pytest.mark.parametrize(
    ("publisher", "why"),
    [
        ("me/pypi-attestations/release.yml", "expected https://github.com/me/pypi-attestations"),
        ("trailofbits/pypi-attestations/other.yml", "not published by trailofbits/"),
        ("trailofbits/release.yml", "expected OWNER/NAME/WORKFLOW.yml"),
    ],
)
def test_another_publisher_is_refused(publisher: str, why: str) -> None:
    with pytest.raises(ReportError, match=why):
        commit_of(FILE, ATTESTATION, publisher, offline=True)


def test_another_file_and_what_is_no_attestation_are_refused(tmp_path: Path) -> None:
    altered = tmp_path / FILE.name
    altered.write_bytes(FILE.read_bytes() + b"\0")
    with pytest.raises(ReportError, match="subject does not match distribution digest"):
        commit_of(altered, ATTESTATION, PUBLISHER, offline=True)
    wrong = tmp_path / "wrong.json"
    for text in ("{", "[]", '{"attestation_bundles": 3}', json.dumps({"version": 1})):
        wrong.write_text(text)
        with pytest.raises(ReportError, match=r"wrong\.json: not an attestation"):
            commit_of(FILE, wrong, PUBLISHER, offline=True)


def test_the_command_refuses_a_wheel_that_was_not_attested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "own-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("own-1.dist-info/METADATA", "Name: own\nVersion: 1\n")
    words = ["verify", str(wheel), "--offline", "--attestation", str(ATTESTATION)]
    assert "both --attestation and --publisher" in CliRunner().invoke(kernelmint, words).output
    words += ["--publisher", PUBLISHER]
    done = CliRunner().invoke(kernelmint, words)
    assert done.exit_code == 1
    assert f"own-1-py3-none-any.whl: not published by {PUBLISHER}: " in done.output
    assert "subject does not match distribution name" in done.output
    monkeypatch.setitem(sys.modules, "pypi_attestations", None)
    done = CliRunner().invoke(kernelmint, words)
    assert "pip install pypi-attestations" in done.output
