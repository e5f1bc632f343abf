"""The repository's workflows: well-formed, and of what the project itself offers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCAFFOLDED = ROOT / "codegen/scaffold/project/ci.yml.mako"


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not on PATH")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(
        ["actionlint", *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read(path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)


@pytest.mark.parametrize("path", [*WORKFLOWS, SCAFFOLDED], ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_tools_by_version(path) -> None:
    """A tag can be moved to other code; beside the commit stands the release that it is."""
    text = path.read_text()
    actions = re.findall(r"uses: *(.*)", text)
    assert actions
    for action in actions:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    for tool in re.findall(r"pipx run (\S+)", text):
        assert re.fullmatch(r"[\w-]+==[\d.]+", tool), tool


def test_the_tests_run_what_a_developer_runs() -> None:
    (tests,) = [path for path in WORKFLOWS if path.name == "tests.yml"]
    assert ".ci/run" in [step.get("run") for step in steps(tests)]
    assert "exec make test" in (ROOT / ".ci/run").read_text()


def test_wheels_are_built_for_both_machines_and_checked() -> None:
    (wheels,) = [path for path in WORKFLOWS if path.name == "wheels.yml"]
    job = yaml.safe_load(wheels.read_text())["jobs"]["wheels"]
    machines = {entry["machine"] for entry in job["strategy"]["matrix"]["include"]}
    assert machines == {"x86_64", "aarch64"}
    commands = [step["run"] for step in steps(wheels) if "run" in step]
    assert any(re.match(r"pipx run cibuildwheel==[\d.]+ ", command) for command in commands)
    assert any(re.match(r"pipx run twine==[\d.]+ check --strict", command) for command in commands)
