"""The repository's workflows: well-formed, and of what the project itself offers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from codegen import scaffold
from tools.matrix import rows
from tools.ptx_report.__main__ import main as ptx_report

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCAFFOLDED = [ROOT / f"codegen/scaffold/project/{name}.yml.mako" for name in ("ci", "wheels")]


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


@pytest.mark.parametrize("path", [*WORKFLOWS, *SCAFFOLDED], ids=lambda path: path.name)
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
    (weekly,) = [path for path in WORKFLOWS if path.name == "matrix.yml"]
    assert "make test-all" in [step.get("run") for step in steps(weekly)]


def test_the_matrix_runs_every_row_weekly_and_one_of_each_kind_in_a_change() -> None:
    (matrix,) = [path for path in WORKFLOWS if path.name == "matrix.yml"]
    entries = yaml.safe_load(matrix.read_text())["jobs"]["matrix"]["strategy"]["matrix"]["rows"]
    always = re.findall(r"make matrix ROWS=(\S+)", matrix.read_text())  # in an image of their own
    weekly, of_change = (
        rows.chosen([*always, *(word for entry in entries for word in entry[when].split())])
        for when in ("every", "some")
    )
    assert weekly == rows.NAMES
    assert {name.partition(":")[0] for name in of_change} == {*rows.KINDS}


def test_wheels_are_built_for_both_machines_and_checked() -> None:
    (wheels,) = [path for path in WORKFLOWS if path.name == "wheels.yml"]
    job = yaml.safe_load(wheels.read_text())["jobs"]["wheels"]
    machines = {entry["machine"] for entry in job["strategy"]["matrix"]["include"]}
    assert machines == {"x86_64", "aarch64"}
    commands = [step["run"] for step in steps(wheels) if "run" in step]
    assert any(re.match(r"pipx run cibuildwheel==[\d.]+ ", command) for command in commands)
    assert any(re.match(r"pipx run twine==[\d.]+ check --strict", command) for command in commands)


@pytest.mark.parametrize("of_project", [False, True])
def test_wheels_are_reproducible_and_published_with_attestations_by_a_job_that_builds_nothing(
    tmp_path, of_project
) -> None:
    path = ROOT / ".github/workflows/wheels.yml"
    if of_project:
        scaffold.create_project("my_kernels", tmp_path / "p")
        path = tmp_path / "p/.github/workflows/wheels.yml"
    jobs = yaml.safe_load(path.read_text())["jobs"]
    publish = jobs.pop("publish")
    assert {*jobs} == {*([publish["needs"]] if of_project else publish["needs"])}
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert publish["permissions"] == {"id-token": "write"}
    assert not any("permissions" in job for job in jobs.values())
    assert not any("run" in step for step in publish["steps"])
    assert publish["steps"][-1]["with"] == {"attestations": True}
    commands = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    assert any("SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)" in text for text in commands)


def test_a_projects_workflow_compares_a_pull_request_and_comments_without_its_code(
    tmp_path,
) -> None:
    scaffold.create_project("my_kernels", tmp_path / "p")
    path = tmp_path / "p/.github/workflows/ci.yml"
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    test, comment = workflow["jobs"]["test"], workflow["jobs"]["comment"]
    (diff,) = [step for step in test["steps"] if step.get("id") == "diff"]
    assert test["outputs"] == {"comment": "${{ steps.diff.outputs.comment }}"}
    assert diff["env"] == {"BASE": "${{ github.base_ref }}"}
    # What is named from outside reaches the shell as variables only.
    assert "${{" not in diff["run"]
    (command,) = re.findall(r"^ptx-report (.*)$", diff["run"], re.MULTILINE)
    context = ptx_report.make_context("ptx-report", command.split())
    assert (context.params["base"], context.params["head"]) == ("FETCH_HEAD", "installed")
    assert context.params["github"]
    assert "permissions" not in test
    assert comment["permissions"] == {"pull-requests": "write"}
    (step,) = comment["steps"]
    assert "uses" not in step
    assert "${{" not in step["run"]


def test_the_projects_comment_is_what_the_step_passed_on(tmp_path) -> None:
    """Through the output of a step, as GitHub reads it, to gh."""
    scaffold.create_project("my_kernels", tmp_path / "p")
    jobs = yaml.safe_load((tmp_path / "p/.github/workflows/ci.yml").read_text())["jobs"]
    (diff,) = [step for step in jobs["test"]["steps"] if step.get("id") == "diff"]
    programs = tmp_path / "bin"
    programs.mkdir()
    text = "**ptx-report: 1 worse**\n\n| `k` | 100% | $HOME |\n"
    (tmp_path / "text").write_text(text)
    for name, body in {
        "git": "exit 0",
        "ptx-report": f"cp {tmp_path}/text comment.md",
        "gh": '[ "$4" = --edit-last ] && exit 1; cp comment.md posted.md',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    given = {
        "PATH": f"{programs}:{os.environ['PATH']}", "BASE": "main", "NUMBER": "1",
        "GITHUB_OUTPUT": str(tmp_path / "out"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
    }  # fmt: skip
    bash = ["bash", "-eo", "pipefail", "-c"]
    subprocess.run([*bash, diff["run"]], cwd=tmp_path, env=given, check=True)
    name, *lines, end = (tmp_path / "out").read_text().splitlines()
    assert name == f"comment<<{end}"
    assert (tmp_path / "summary").read_text() == text
    (step,) = jobs["comment"]["steps"]
    comment = {"COMMENT": "\n".join(lines)}
    subprocess.run([*bash, step["run"]], cwd=tmp_path, env={**given, **comment}, check=True)
    assert (tmp_path / "posted.md").read_text() == text
