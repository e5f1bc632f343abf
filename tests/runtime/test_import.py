"""Importing: without the extension, with another build's, on a machine of any processor; `info`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import runtime
from runtime import _native, manifest

SOURCE = Path(runtime.__file__).parent


def copy_of(tmp_path, *, extension):
    """The package as plain files in `tmp_path`, with or without what a build adds."""
    package = tmp_path / "runtime"
    package.mkdir()
    for source in SOURCE.glob("*.py"):
        shutil.copy(source, package)
    # The runtime reads codegen's expression language.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE.parent / "codegen", tmp_path / "codegen", ignore=ignored)
    if extension:
        shutil.copy(_native.__file__, package)
        shutil.copytree(manifest.FOLDER, package / "_generated")
    return package


def import_copy(tmp_path, code="import runtime", beside=None, **environment):
    """Runs `code` against the copy: -S and an explicit path keep an editable install's hook out."""
    copies = [str(folder) for folder in (tmp_path, beside) if folder is not None]
    paths = os.pathsep.join([*copies, *(p for p in sys.path if p.endswith("-packages"))])
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def last_line(result):
    return result.stderr.strip().splitlines()[-1]


def test_the_source_tree_without_its_extension_says_so_with_the_command(tmp_path):
    package = copy_of(tmp_path, extension=False)
    result = import_copy(tmp_path)
    assert result.returncode == 1
    assert last_line(result) == (
        f"ImportError: the runtime in {package} has no compiled extension: run `make build` (or "
        f"`pip install .`) in the checkout"
    )


def test_an_extension_of_other_generated_code_is_refused_naming_both(tmp_path):
    package = copy_of(tmp_path, extension=True)
    assert import_copy(tmp_path).returncode == 0
    path = package / "_generated/manifest.json"
    path.write_text(path.read_text().replace(_native.fingerprint, "0123456789abcdef"))
    result = import_copy(tmp_path)
    assert result.returncode == 1
    line = last_line(result)
    assert line.startswith("ImportError: ")
    assert _native.fingerprint in line
    assert "0123456789abcdef" in line
    assert line.endswith("run `pip install .`")
    path.unlink()
    assert "has no manifest beside it" in last_line(import_copy(tmp_path))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "[" * 100_000, "\udcff", '{"fingerprint": "\\ud800"}', "\0"]
)
def test_a_damaged_manifest_is_an_import_error_with_the_command_that_mends_it(tmp_path, text):
    package = copy_of(tmp_path, extension=True)
    path = package / "_generated/manifest.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    result = import_copy(tmp_path)
    assert result.returncode == 1
    line = last_line(result)
    assert line.startswith("ImportError: ")
    assert line.endswith("run `pip install .`")


def test_an_extension_of_another_build_is_refused_naming_both(tmp_path):
    """The same generated code, but other headers, flags or compilers."""
    path = copy_of(tmp_path, extension=True) / "_generated/build.json"
    path.write_text(path.read_text().replace(_native.build_fingerprint, "0123456789abcdef"))
    line = last_line(import_copy(tmp_path))
    assert line.startswith("ImportError: ")
    assert _native.build_fingerprint in line
    assert "is of 0123456789abcdef" in line
    assert line.endswith("run `pip install .`")
    path.unlink()
    assert "has no record of its build beside it" in last_line(import_copy(tmp_path))


def test_a_checkout_runs_with_the_extension_installed_beside_it(tmp_path):
    """`pip install .`, then Python in the checkout's root, whose folder comes first."""
    checkout, site = tmp_path / "checkout", tmp_path / "site"
    site.mkdir()
    copy_of(site, extension=True)
    checkout.mkdir()
    package = copy_of(checkout, extension=False)
    for name in manifest.build()["sources"]:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE.parent / name, checkout / name)
    (checkout / "generated").mkdir()
    tree = checkout / "generated/manifest.json"
    shutil.copy(manifest.FOLDER / "manifest.json", tree)
    code = (
        "import runtime; print(runtime.__file__, runtime.manifest.FOLDER, runtime.kernels()[0].key)"
    )

    def run():
        return import_copy(checkout, code, beside=site)

    assert run().stdout.split() == [
        str(package / "__init__.py"), str(site / "runtime/_generated"), runtime.kernels()[0].key
    ]  # fmt: skip
    tree.write_text(tree.read_text().replace(_native.fingerprint, "0123456789abcdef"))
    line = last_line(run())
    assert line.startswith(f"ImportError: {tree} is 0123456789abcdef, the extension installed as ")
    assert line.endswith(f"run `make build` (or `pip install .`) in {checkout}")
    shutil.copy(manifest.FOLDER / "manifest.json", tree)
    header = checkout / "runtime/src/kernel.h"
    header.write_text(header.read_text() + "// edited\n")
    line = last_line(run())
    assert line.startswith(f"ImportError: {header} changed since the extension installed as ")


def test_cpu_kernels_run_where_no_gpu_is_visible(run_python, tmp_path):
    script = """
import torch, runtime
q = torch.randn(1, 5, 2, 64)
assert runtime.attention(q, q, q).isfinite().all()
print(*{i.reason for i in runtime.kernels(target="sm80")})
"""
    shown = run_python(script, tmp_path, CUDA_VISIBLE_DEVICES="").stdout
    assert shown.startswith(("no CUDA device", "built without CUDA", "built for compute"))


SHOW_ISA = "import runtime; print(runtime._native.active_cpu_isa())"
CALL = """
import torch, runtime
q = torch.randn(1, 70, 2, 64)
print((runtime.attention(q, q, q).double() - torch.nn.functional.scaled_dot_product_attention(
    *(q.double().transpose(1, 2),) * 3).transpose(1, 2)).abs().max().item())
"""


def test_the_best_instruction_set_of_the_processor_is_used(run_python, tmp_path):
    supported = _native.build_info()["supported_cpu_isas"]
    environment = {"KERNELMINT_CPU_ISA": ""}
    assert run_python(SHOW_ISA, tmp_path, **environment).stdout.strip() == supported[-1]


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "amx"])
def test_an_environment_variable_names_another(run_python, tmp_path, isa):
    build = _native.build_info()
    result = run_python(SHOW_ISA, tmp_path, check=False, KERNELMINT_CPU_ISA=isa)
    if isa in build["supported_cpu_isas"]:
        assert result.stdout.strip() == isa
        error = float(run_python(CALL, tmp_path, KERNELMINT_CPU_ISA=isa).stdout)
        assert error < 5e-6
    else:
        reason = (
            "does not run it" if isa in build["cpu_isas"] else f"this build has no {isa} kernels"
        )
        assert last_line(result).startswith(
            f"runtime.TargetUnavailable: KERNELMINT_CPU_ISA={isa}: "
        )
        assert reason in last_line(result)


def test_an_unknown_instruction_set_is_a_clear_error(run_python, tmp_path):
    result = run_python(CALL, tmp_path, check=False, KERNELMINT_CPU_ISA="sse9")
    assert last_line(result) == (
        "runtime.InvalidArgument: KERNELMINT_CPU_ISA=sse9: not an instruction set; use one of "
        "baseline, avx2, avx512, amx"
    )


def info(tmp_path, *options):
    command = [sys.executable, "-m", "runtime", "info", *options]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout


def test_info_shows_versions_devices_targets_counts_and_reasons(tmp_path):
    shown = info(tmp_path)
    assert torch.__version__ in shown
    assert _native.fingerprint in shown
    assert _native.active_cpu_isa() in shown
    for target in runtime.targets():
        assert target in shown


def test_info_as_json(tmp_path):
    found = json.loads(info(tmp_path, "--json"))
    assert found["fingerprint"] == _native.fingerprint
    assert found["cpu_isa"] == _native.active_cpu_isa()
    for row in found["targets"]:
        kernels = runtime.kernels(row["family"], row["target"])
        assert row["generated"] == len(kernels)
        assert row["built"] == sum(k.built for k in kernels)
        assert row["available"] == sum(k.available for k in kernels)
        assert row["available"] == row["generated"] or row["reason"]
