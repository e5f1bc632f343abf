"""kernelmint build and kernelmint cache."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

import kernelmint as face
import runtime
from kernelmint.__main__ import main
from runtime import KernelNotFound


@pytest.fixture
def kernelmint():
    """Runs the command; its standard output."""

    def run(*arguments: object, status: int = 0) -> str:
        done = CliRunner().invoke(main, [str(a) for a in arguments])
        assert done.exit_code == status, done.output
        return done.output

    return run


def test_kernels_are_built_listed_and_pruned(family, cache, compilations, kernelmint, tmp_path):
    wanted = "target == 'cpu' and dtype == f32"
    assert family.key() in kernelmint("build", family.folder, "--where", wanted)
    assert len(compilations.take()) == 2
    assert "1 kernel in" in kernelmint("build", family.specs, "--where", wanted)
    kernelmint("build", family.folder, "--key", family.key(4096))
    assert len(compilations.take()) == 2

    listed = {entry["key"]: entry for entry in json.loads(kernelmint("cache", "--json"))}
    assert listed.keys() == {family.key(), family.key(4096), family.name}
    assert all(entry["size"] > 1000 for entry in listed.values())
    shown = kernelmint("cache")
    assert "3 packs, " in shown
    assert family.key(4096) in shown
    assert "removed 0 packs" in kernelmint("cache", "--older-than", "1", "--prune", "1G")
    assert "removed 3 packs" in kernelmint("cache", "--prune", "0")
    assert json.loads(kernelmint("cache", "--json")) == []
    kernelmint("build", family.folder, "--where", wanted, "--cache", tmp_path / "shipped")
    assert len(compilations.take()) == 2
    assert len(list((tmp_path / "shipped/1/packs").iterdir())) == 2


def test_a_family_of_this_folder_is_known_by_name(family, cache, kernelmint, monkeypatch):
    family.specs.rename(family.specs.parent / "kernel_specs")
    monkeypatch.chdir(family.specs.parent)
    with pytest.raises(KernelNotFound, match=rf"load\('kernel_specs/{family.name}'\) adds"):
        runtime.kernel(family.key())
    assert family.key() in kernelmint("build", family.name, "--key", family.key())
    tuned = kernelmint("tune", family.name, "--target", "cpu", status=1)
    assert f"kernel_specs/{family.name}/cpu.shapes.yaml" in tuned  # what else is needed
    z = getattr(face, family.name)(*torch.ones(2, 1, 10), alpha=2.0)  # its front
    assert z.sum() == 30


def test_bad_input_is_an_error_in_a_sentence(family, cache, kernelmint, tmp_path):
    assert "no families here" in kernelmint("build", tmp_path / "none", status=2)
    assert "unknown name 'nix'" in kernelmint("build", family.folder, "--where", "nix", status=2)
    assert "expected a size such as 500M" in kernelmint("cache", "--prune", "much", status=2)
