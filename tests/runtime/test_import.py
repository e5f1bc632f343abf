"""Importing: without the extension, with another build's, on a machine of any processor; `info`."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

import runtime
from runtime import _native
from runtime.__main__ import collect, show
from tests.slow import slow_after

from .installations import OWN, SOURCE, copy_of, import_copy, last_line


def test_the_source_tree_without_its_extension_says_so_with_the_command(tmp_path):
    package = copy_of(tmp_path, extension=False)
    result = import_copy(tmp_path)
    assert result.returncode == 1
    assert last_line(result) == (
        f"ImportError: the runtime in {package} has no compiled extension: run `make build` (or "
        f"`pip install .`) in the checkout"
    )


def test_a_checkout_runs_with_the_extension_installed_beside_it(tmp_path):
    """`pip install .`, then Python in the checkout's root, whose folder comes first."""
    checkout, site = tmp_path / "checkout", tmp_path / "site"
    site.mkdir()
    copy_of(site, extension=True)
    checkout.mkdir()
    package = copy_of(checkout, extension=False)
    for name in OWN.sources:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE.parent / name, checkout / name)
    (checkout / "generated").mkdir()
    tree = checkout / "generated/manifest.json"
    shutil.copy(OWN.manifest, tree)
    code = (
        "import runtime; print(runtime.__file__, runtime.packs.all_packs()[0].folder, "
        "runtime.kernels()[0].key)"
    )

    def run():
        return import_copy(checkout, code, beside=site)

    assert run().stdout.split() == [
        str(package / "__init__.py"), str(site / "kernelmint/_pack"), runtime.kernels()[0].key
    ]  # fmt: skip
    fingerprint = OWN.generated["flash_forward"]
    tree.write_text(tree.read_text().replace(fingerprint, "0123456789abcdef"))
    line = last_line(run())
    assert line.startswith(f"ImportError: {tree} is not what pack kernelmint (kernelmint 0.1.0, ")
    assert line.endswith(f"run `make build` (or `pip install .`) in {checkout}")
    shutil.copy(OWN.manifest, tree)
    header = checkout / "runtime/src/kernel.h"
    header.write_text(header.read_text() + "// edited\n")
    line = last_line(run())
    assert line.startswith(f"ImportError: {header} changed since pack kernelmint (kernelmint 0.1.0")


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
    supported = _native.supported_cpu_isas()
    environment = {"KERNELMINT_CPU_ISA": ""}
    assert run_python(SHOW_ISA, tmp_path, **environment).stdout.strip() == supported[-1]


@pytest.mark.parametrize("isa", slow_after(1, ["baseline", "avx2", "avx512", "amx"]))
def test_an_environment_variable_names_another(run_python, tmp_path, isa):
    result = run_python(SHOW_ISA, tmp_path, check=False, KERNELMINT_CPU_ISA=isa)
    if isa in _native.supported_cpu_isas():
        assert result.stdout.strip() == isa
        called = run_python(CALL, tmp_path, check=False, KERNELMINT_CPU_ISA=isa)
        if isa not in OWN.isas:
            assert "was not compiled for it, but for: " in last_line(called)
            assert "KERNELMINT_ISAS=all" in last_line(called)
            return
        error = float(called.stdout)
        assert error < 5e-6
    else:
        assert last_line(result).startswith(
            f"runtime.TargetUnavailable: KERNELMINT_CPU_ISA={isa}: this processor does not run it"
        )


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
    assert OWN.fingerprint in shown
    assert _native.active_cpu_isa() in shown
    for target in runtime.targets():
        assert target in shown


def test_info_keeps_a_long_name_of_a_family_apart_from_its_target(capsys):
    found = collect()
    name = "a_family_whose_name_is_long"
    row = {**found["targets"][0], "family": name, "target": "cpu", "verified": {}}
    show({**found, "targets": [row]})
    heading, line = capsys.readouterr().out.splitlines()[-2:]
    assert line.split()[:2] == [name, "cpu"]
    assert heading.index("target") == line.index("cpu")


def test_info_as_json(tmp_path):
    found = json.loads(info(tmp_path, "--json"))
    (own,) = (pack for pack in found["packs"] if pack["name"] == "kernelmint")
    assert own["fingerprint"] == OWN.fingerprint
    assert found["cpu_isa"] == _native.active_cpu_isa()
    for row in found["targets"]:
        kernels = runtime.kernels(row["family"], row["target"])
        assert row["generated"] == len(kernels)
        assert row["built"] == sum(k.built for k in kernels)
        assert row["available"] == sum(k.available for k in kernels)
        assert row["available"] == row["generated"] or row["reason"]


class Attend(torch.nn.Module):
    def forward(self, q):
        return runtime.attention(q, q, q)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with kernelmint and its pack, and with programs that were saved by this process."""
    folder = tmp_path_factory.mktemp("programs")
    copy_of(folder, extension=True)
    for file in (SOURCE.parent / "kernelmint").glob("*.py"):
        shutil.copy(file, folder / "kernelmint")
    q = torch.ones(1, 9, 2, 64)
    torch.export.save(torch.export.export(Attend(), (q,)), folder / "exported.pt2")
    torch.jit.save(torch.jit.trace(Attend(), (q,)), folder / "traced.pt")
    return folder


KNOWN = "torch._C._jit_get_schemas_for_operator('kernelmint::flash_forward')"
LOOKS = {
    "torch.ops": "torch.ops.kernelmint.flash_forward.default",
    "a name that is none": "assert not hasattr(torch.ops.kernelmint, 'none')",
    "torch.export.load": "assert (torch.export.load('exported.pt2').module()(q) == 1).all()",
    "torch.jit.load": "kernelmint.register_operators(); "
    "assert (torch.jit.load('traced.pt')(q) == 1).all()",
    "aoti_load_package": f"import torch._inductor.package; assert {KNOWN}",
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("first", slow_after(1, ["torch, kernelmint", "kernelmint, torch"]))
def test_importing_kernelmint_gives_the_operators(programs, first, look):
    """To whoever looks for one; before, nothing of runtime is imported."""
    if look == "aoti_load_package":
        pytest.importorskip("torch._inductor.package", reason="PyTorch 2.4 has none")
    code = (
        f"import {first}, sys; assert 'runtime' not in sys.modules; q = torch.ones(1, 9, 2, 64); "
        f"{LOOKS[look]}; assert {KNOWN}; "
        "assert type(torch.ops.kernelmint) is torch._ops._OpNamespace"
    )
    result = import_copy(programs, code)
    assert result.returncode == 0, result.stderr


def test_importing_kernelmint_after_runtime_leaves_torch_ops(programs):
    code = "import runtime, torch; was = torch.ops.kernelmint; import kernelmint; "
    result = import_copy(programs, code + "assert torch.ops.kernelmint is was; was.flash_forward")
    assert result.returncode == 0, result.stderr
