"""manifest.json: what the writer writes, the reader reads; what is not of its form is an error that
says if it is not."""

import json
from pathlib import Path

import pytest

from codegen.core import manifest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "generated/manifest.json").read_text(encoding="utf-8")


def test_a_manifest_that_is_read_is_written_as_it_was():
    found = manifest.parse(TEXT)
    assert manifest.text(found) == TEXT
    assert manifest.parse(manifest.text(found)) == found
    assert len(found.files) == len(list(found.kernels)) > 0


@pytest.mark.parametrize(
    ("steps", "value", "message"),
    [
        (("families",), {}, "families: got {}, expected a list"),
        (("families", 0, "name"), 3, "families[0].name: got 3, expected a string"),
        (("families", 0, "name"), "a\0", "families[0].name: got 'a\\x00', expected a string that"),
        (("families", 0, "name"), "\ud800", "expected a string that can be printed"),
        (("families", 0, "reference"), 1, "reference: got 1, expected a string or null"),
        (("families", 0, "arguments", 0, "dims"), None, "arguments[0].dims: got None, expected a"),
        (("families", 0, "targets", 0, "capability"), True, "got True, expected an integer"),
        (
            ("families", 0, "targets", 0, "kernels", 0, "parameters", "mode"),
            [],
            "families[0].targets[0].kernels[0].parameters.mode: got [], expected a bool or an",
        ),
        (("version",), 2, "got version 2, expected 1"),
        (("version",), None, "got version None, expected 1"),
    ],
)
def test_what_is_of_another_form_is_named_with_its_place(steps, value, message):
    data = json.loads(TEXT)
    inner = data
    for step in steps[:-1]:
        inner = inner[step]
    assert steps[-1] in inner or isinstance(steps[-1], int)
    inner[steps[-1]] = value
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message follows
        manifest.parse(json.dumps(data))
    assert message in str(caught.value)


@pytest.mark.parametrize("member", ["families", "selection", "outputs"])
def test_a_member_that_is_missing_is_named(member):
    data = json.loads(TEXT)
    del data[member]
    with pytest.raises(ValueError, match=f"expected a member '{member}'"):
        manifest.parse(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, '{"version": NaN}'])
def test_what_is_no_manifest_is_an_error_of_one_kind(text):
    with pytest.raises(ValueError):  # noqa: PT011 - each has a text of its own
        manifest.parse(text)


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ("block: [32, warps]", (256, 0)),
        ("block: [32, warps], shared_memory: 4 * tile", (256, 256)),
        ("block: [32, warps], shared_memory: 4 * N", (0, 0)),  # a call decides it
        ('block: [32, "min(warps, M)"], shared_memory: 4 * tile', (0, 256)),
    ],
)
def test_a_kernel_has_the_threads_and_the_shared_memory_of_its_launch(workspace, launch, expected):
    workspace.edit(
        "sm80.yaml", "  threads: 32 * warps\nlimits: {threads: 256}", "  area: tile * warps"
    )
    workspace.edit("sm80.yaml", "block: threads", launch)
    result = workspace.run("regenerate")
    assert result.status == 0, result.output
    found = manifest.read(workspace.out / "manifest.json")
    kernels = {kernel.key: kernel for _, _, kernel in found.kernels}
    kernel = kernels["demo.sm80.bf16-t64-w8-auto"]
    assert (kernel.threads, kernel.shared_memory) == expected


def test_a_budget_may_name_an_architecture(workspace):
    budget = "budget: {spill_bytes: 0, architectures: {sm90: {spill_bytes: 16, code_bytes: 9000}}}"
    workspace.edit("sm80.yaml", "budget: {spill_bytes: 0}", budget)
    assert workspace.run("regenerate").status == 0
    found = manifest.read(workspace.out / "manifest.json")
    (target,) = (target for family in found.families for target in family.targets if target.is_cuda)
    assert target.budget_on("sm_80") == target.budget_on(None) == {"spill_bytes": 0}
    assert target.budget_on("sm_90") == {"spill_bytes": 16, "code_bytes": 9000}
    assert target.budget_on("sm_90a") == {"spill_bytes": 0}
    assert manifest.text(found) == (workspace.out / "manifest.json").read_text()


@pytest.mark.parametrize("name", ["sm75", "sm90a", "90", "cpu"])
def test_a_budget_of_an_architecture_that_the_target_is_not_compiled_for(workspace, name):
    budget = f'budget: {{architectures: {{"{name}": {{spill_bytes: 16}}}}}}'
    workspace.edit("sm80.yaml", "budget: {spill_bytes: 0}", budget)
    result = workspace.run("check")
    expected = f"got '{name}', expected an architecture that sm80 is compiled for, such as sm80"
    assert (result.status, expected in result.output) == (2, True), result.output
