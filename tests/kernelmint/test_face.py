"""`import kernelmint`: every public name of runtime, and what it says where one cannot be had."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import kernelmint
import runtime


def test_it_has_every_public_name_of_runtime() -> None:
    assert set(runtime.__all__) <= set(dir(kernelmint))
    for name in runtime.__all__:
        assert getattr(kernelmint, name) is getattr(runtime, name)
    namespace: dict[str, object] = {}
    exec("from kernelmint import *", namespace)
    assert set(runtime.__all__) <= namespace.keys()


def test_it_has_the_version_of_what_is_installed() -> None:
    assert kernelmint.__version__ == importlib.metadata.version("kernelmint")


def test_a_name_that_runtime_has_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kernelmint' has no attribute 'atention'"):
        _ = kernelmint.atention
    assert not hasattr(kernelmint, "finding")  # a module of runtime's, but no public name


def test_importing_it_takes_neither_torch_nor_what_codegen_needs(python, without_torch) -> None:
    """A build backend imports it without any of them."""
    script = (
        "import sys, kernelmint\n"
        "from kernelmint import rooms\n"
        "assert not hasattr(kernelmint, '_private')\n"
        "print(*{'torch', 'runtime', 'codegen', 'click', 'yaml'} & sys.modules.keys())"
    )
    done = python("-c", script, libraries=[])
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    "script",
    [
        "from runtime import kernel",
        "import kernelmint; kernelmint.kernel",
        "import kernelmint; kernelmint.register_operators()",
    ],
)
def test_without_pytorch_the_command_that_installs_it_is_named(
    python, without_torch, script
) -> None:
    done = python("-c", script, libraries=[without_torch])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: runtime calls kernels on PyTorch tensors, and PyTorch is not "
        'installed: run `pip install "kernelmint[torch]"`'
    )


@pytest.mark.parametrize("name", ["runtime", "codegen"])
@pytest.mark.parametrize("is_package", [False, True])
def test_a_foreign_module_that_shadows_a_room_is_named(
    python, site, tmp_path, name, is_package
) -> None:
    foreign = tmp_path / name / "__init__.py" if is_package else tmp_path / f"{name}.py"
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("raise SystemExit('a foreign module was run')\n")
    done = python("-c", "import kernelmint; kernelmint.attention")
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith(
        f"ImportError: `import {name}` finds {foreign}, not kernelmint's {name}, which is "
        f"{site / name}: rename"
    )


def test_a_foreign_module_that_was_imported_before_is_named(python, tmp_path) -> None:
    (tmp_path / "runtime.py").write_text("")
    done = python("-c", "import runtime, kernelmint; kernelmint.attention")
    assert f"`import runtime` finds {tmp_path / 'runtime.py'}, not" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_types_are_known_to_mypy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import kernelmint\n"
        "info: kernelmint.KernelInfo = kernelmint.kernels()[0]\n"
        "reveal_type(kernelmint.kernel(info.key))\n"
        "version: int = kernelmint.__version__\n"
        "kernelmint.attention\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", script],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "runtime.handle.Kernel"' in done.stdout
    assert done.stdout.count("error:") == 1, done.stdout
    assert 'expression has type "str", variable has type "int"' in done.stdout
