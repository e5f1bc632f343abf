"""The table of toolkits: it lies beside a family's specs, and a build reads it first."""

import json
import shutil

import jsonschema
import pytest
from click.testing import CliRunner

import runtime
from codegen.build import toolkits
from codegen.core import advice, verified
from codegen.core.home import ROOT, SPECS
from codegen.core.ptxas_rows import Row
from codegen.ptxas.fingerprints import Manifest, SourceFingerprint
from runtime import BuildError, loading, ondemand
from runtime.ondemand.emit import Spec
from tools.ptx_report import advising
from tools.ptx_report.__main__ import main
from tools.ptx_report.compiling import Compiled, Variant
from tools.ptx_report.objects import find_tool

NVCC = shutil.which("nvcc")
SCHEMA = ROOT / "tests/ptx_report/data/sarif-schema-2.1.0.json"


@pytest.fixture
def key(family, cache):
    """The one CUDA kernel of its family's set."""
    family.edit("dtype: [bf16, fp16, f32]", "dtype: f32", "sm80.yaml")
    return f"{family.name}.sm80.f32-t256-n1024"


@pytest.mark.skipif(NVCC is None or find_tool("nvdisasm") is None, reason="no nvcc, or no nvdisasm")
def test_a_set_is_recorded_with_the_kernels_that_a_toolkit_has_trouble_with(family, key, tmp_path):
    family.edit("#pragma once", "#pragma once\n#ifdef OTHER\n#error too old\n#endif", "sm80.cuh")
    other, own = tmp_path / "nvcc", toolkits.find(NVCC).version
    other.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo "release 13.9, V13.9.1" ;;'
        f' *) exec {NVCC} "$@" -DOTHER ;; esac\n'
    )
    other.chmod(0o755)
    options = ["--nvcc", NVCC, "--nvcc", str(other), "--architecture", "80", "--record"]
    result = CliRunner().invoke(main, ["toolkits", str(family.specs), *options])
    assert result.exit_code == 0, result.output
    assert "does not compile: " in result.output
    fails = advice.Row(key, "", "sm_80", "13.9.1", 1, 0, 0, 0, 0, 0, "", "")
    table = {row._replace(code="", note="") for row in advice.read(family.specs / advice.NAME)}
    whole = fails._replace(kernels=key.rpartition(".")[0], set="default")
    compiled = {"nvcc": own, "compiled": 1}
    assert table == {fails, whole, fails._replace(**compiled), whole._replace(**compiled)}


@pytest.mark.parametrize("option", ["--csv", "--rows"])
def test_no_spec_is_written_over(family, key, tmp_path, option):
    compiler, spec = tmp_path / "nvcc", family.folder / "sm80.yaml"
    compiler.write_text("#!/bin/sh\necho 'release 13.9, V13.9.1'\n")
    compiler.chmod(0o755)
    before = spec.read_bytes()
    options = ["--nvcc", str(compiler), "--architecture", "80", option, str(spec)]
    result = CliRunner().invoke(main, ["toolkits", str(family.specs), *options])
    assert (result.exit_code, f"{spec}: is an input" in result.output) == (2, True)
    assert spec.read_bytes() == before


@pytest.mark.skipif(NVCC is None, reason="no nvcc on PATH")
def test_two_builds_of_a_changed_constraint_are_compared_in_every_format(family, key, tmp_path):
    """Kernels that the constraint leaves out are gone, others are new, at the line of the set."""

    def build(name):
        csv = tmp_path / f"{name}.csv"
        options = ["--nvcc", NVCC, "--architecture", "80", "--csv", str(csv)]
        result = CliRunner().invoke(main, ["toolkits", str(family.specs), *options])
        assert result.exit_code == 0, result.output
        return str(csv)

    base = build("base")
    family.edit("that: tile % threads == 0", "that: tile == 2 * threads", "sm80.yaml")
    family.edit("threads: [256]", "threads: [512]", "sm80.yaml")
    head = build("head")
    runtime.load(family.specs)
    Spec(ondemand.source_of(family.name)).whole().write(tmp_path)
    files = {form: tmp_path / f"d.{form}" for form in ("markdown", "json", "sarif", "html")}
    options = [word for form, file in files.items() for word in (f"--{form}", str(file))]
    more = ["--manifest", str(tmp_path / "manifest.json"), "--github", "--fail-on", "added,removed"]
    result = CliRunner().invoke(main, ["diff", base, head, *options, *more])
    assert result.exit_code == 1, result.output
    assert "1 removed, 1 added" in result.output
    new, texts = key.replace("t256", "t512"), {f: file.read_text() for f, file in files.items()}
    changes = json.loads(texts["json"])["changes"]
    verdicts = {change["kernel_config"]: change["verdict"] for change in changes}
    assert verdicts == {key: "removed", new: "added"}
    assert all(name in texts[form] for name in (key, new) for form in ("markdown", "html"))
    log = json.loads(texts["sarif"])
    jsonschema.validate(log, json.loads(SCHEMA.read_text()), jsonschema.Draft4Validator)
    lines = (family.folder / "sm80.yaml").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "default:" in text)
    assert result.output.count(f"sm80.yaml,line={line},") == 2
    regions = [
        place["physicalLocation"]["region"]
        for found in log["runs"][0]["results"]
        for place in found["locations"]
    ]
    assert regions == [{"startLine": line}] * 2


@pytest.mark.skipif(NVCC is None or find_tool("nvdisasm") is None, reason="no nvcc, or no nvdisasm")
def test_rows_of_another_machine_are_merged(family, key, tmp_path):
    def run(*options):
        result = CliRunner().invoke(main, ["toolkits", str(family.specs), *map(str, options)])
        assert result.exit_code == 0, result.output

    rows, table, page = tmp_path / "rows.csv", family.specs / advice.NAME, tmp_path / "p.md"
    run("--nvcc", NVCC, "--architecture", "80", "--rows", rows)
    assert not table.exists()
    whole, kernel = advice.read(rows)
    assert (whole.kernels, kernel.kernels) == (key.rpartition(".")[0], key)
    other = kernel._replace(nvcc="13.9.1", spilled=1)
    changed = other._replace(nvcc="13.9.2", code="0")  # of another source
    older = whole._replace(nvcc="13.9.3", code="0")
    (tmp_path / "other.csv").write_text(advice.text([other, changed, older]))
    page.write_text("| kernels | architecture |\n")
    run("--merge", rows, "--merge", tmp_path / "other.csv", "--matrix", page)
    assert advice.read(table) == [whole, kernel, other]
    assert f"`{key}`" in page.read_text()


def test_a_source_has_one_fingerprint_in_any_set(monkeypatch):
    monkeypatch.setattr(ondemand, "sources", dict(ondemand.sources))  # the checkout's are loaded
    manifest = Manifest(ROOT / "generated/manifest.json")
    whole = SourceFingerprint(manifest, [SPECS])
    loading.families(SPECS)
    for target in ("flash_prefill.sm90a.", "flash_decode.sm80."):
        key = next(key for key in manifest.kernels if key.startswith(target))
        kernel = Spec(ondemand.source_of(key.partition(".")[0])).kernel(key)
        assert kernel.fingerprint(key, SPECS) == whole.of(key)


def test_what_verify_found_wrong_is_refused_at_the_next_build(family, key):
    runtime.load(family.specs)

    def record(version, code):
        variant = Variant(version, toolkits.Toolkit(("nvcc",), version))
        result = Compiled(variant, {key: [Row(key, arch="sm_80")]}, {(key, "sm_80"): code})
        advising.record(advising.rows_of([result], "default", set()))

    rows = [
        verified.Row(key, "sm_80", "nvcc 13.0.88", code, "GPU", "reference", outcome)
        for code, outcome in (("bad", "wrong: z"), ("good", verified.RIGHT))
    ]
    (family.folder / verified.name_of("sm80")).write_text(verified.text(rows))
    record("13.5.37", "good")
    assert advice.read(family.specs / advice.NAME) == []
    nvcc = toolkits.find(NVCC).version if NVCC else pytest.skip("no nvcc on PATH")
    record(nvcc, "bad")
    record("99.5.37", "good")
    bad, good = advice.read(family.specs / advice.NAME)
    assert (bad.wrong, bad.note) == (1, "verify on GPU: wrong: z")
    assert (good.wrong, good.verified) == (0, 1)
    with pytest.raises(
        BuildError,
        match=rf"nvcc {nvcc} compiles {key} wrongly for sm_80 .*: nvcc 99.5.37 compiles it",
    ):
        runtime.build(family.specs, keys=[key], architectures=["80"])
    family.edit("#pragma once", "#pragma once\n#error it is compiled", "sm80.cuh")
    with pytest.raises(BuildError, match="it is compiled"):  # the row is of another source
        runtime.build(family.specs, keys=[key], architectures=["80"])
    record("99.6.1", "good")
    assert advice.read(family.specs / advice.NAME) == []
