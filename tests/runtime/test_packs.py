"""Packs: found without being loaded; those that are damaged, alike, too old or too new are errors
of their own, and the others keep working."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import runtime
from codegen.core.packs import PACK_JSON
from runtime import _native
from runtime import packs as runtime_packs
from tests.slow import slow_after

from .installations import OWN, SOURCE, copy_of, import_copy, install_pack, last_line

CALL = (
    "import torch, runtime; kernel = runtime.kernel('flash_forward.cpu.f32-d64-r64-c128'); "
    "print(kernel(*[torch.ones(1, 3, 1, 64)] * 3).sum())"
)


@pytest.fixture
def site(tmp_path):
    """A folder with the package and Kernelmint's own pack."""
    copy_of(tmp_path, extension=True)
    return tmp_path


def family_of(record, family):
    """The record of a pack that holds one family."""
    data = json.loads(record.read_text())
    for part in ("generated", "operators"):
        data[part] = {family: data[part][family]}
    data["fronts"] = [front for front in data["fronts"] if front["family"] == family]
    data["targets"] = [target for target in data["targets"] if target.startswith(family + ".")]
    return data


def second_pack(site, rename=None):
    """Kernelmint's own pack, cut in two: flash_forward in `kernelmint`, hstu_bsa in `other`."""
    first, other = site / "kernelmint/_pack", install_pack(site, "other")
    for folder, family in ((first, "flash_forward"), (other, "hstu_bsa")):
        data = family_of(folder / PACK_JSON, family)
        data["name"] = folder.parent.name
        (folder / PACK_JSON).write_text(json.dumps(data))
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["families"] = [f for f in manifest["families"] if f["name"] == family]
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return other


def edit(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def works(site, code=CALL):
    result = import_copy(site, code)
    assert result.returncode == 0, result.stderr
    return result.stdout


def fails(site, code, *parts):
    result = import_copy(site, code)
    assert result.returncode == 1
    line = last_line(result)
    assert line.startswith("runtime.PackError: "), result.stderr
    for part in parts:
        assert part in line
    return line


OTHERS = "import runtime; runtime.kernel(runtime.kernels('hstu_bsa', 'cpu')[0].key)"


def test_two_packs_are_listed_and_called(site):
    second_pack(site)
    shown = works(site, "import runtime; print(runtime.families(), len(runtime.kernels()))")
    count = sum(info.family in ("flash_forward", "hstu_bsa") for info in runtime.kernels())
    assert shown.strip() == f"['flash_forward', 'hstu_bsa'] {count}"
    works(site)
    works(site, OTHERS)
    works(site, "import torch, runtime; torch.ops.kernelmint.hstu_bsa; runtime.attention")


def test_nothing_is_loaded_until_it_is_used(site):
    loaded = "print([l.split()[-1] for l in open('/proc/self/maps') if '_pack/' in l])"
    assert works(site, f"import runtime; runtime.kernels(); {loaded}").strip() == "[]"
    shown = works(site, f"{CALL}; {loaded}")
    assert "flash_forward.so" in shown
    assert "hstu_bsa.so" not in shown


def test_two_packs_with_one_family_are_an_error_that_names_both(site):
    """Neither is half there; a third pack keeps working."""
    other = second_pack(site)
    third = install_pack(site, "third")
    edit(third / PACK_JSON, **{**family_of(third / PACK_JSON, "hstu_bsa"), "name": "third"})
    listing = fails(site, "import runtime; runtime.kernels()", "the family hstu_bsa is in ")
    assert str(other) in listing
    assert str(third) in listing
    fails(site, OTHERS, "pack other (other 0.1.0, ", "pack third (third 0.1.0, ")
    assert works(site, "import runtime; print(runtime.families())").strip() == "['flash_forward']"
    works(site)


def test_two_packs_of_one_name_are_an_error_that_names_both(site):
    other = second_pack(site)
    third = install_pack(site, "third")
    edit(third / PACK_JSON, **{**family_of(third / PACK_JSON, "block_sparse"), "name": "other"})
    listing = fails(site, "import runtime; runtime.kernels()", "the name other is that of ")
    assert str(other) in listing
    assert str(third) in listing
    fails(site, OTHERS, "pack other (other 0.1.0, ", "pack other (third 0.1.0, ")
    works(site)


@pytest.mark.parametrize("age", [0, 1000])
def test_a_pack_of_another_abi_is_an_error_that_names_both_versions(site, age):
    other = second_pack(site)
    edit(other / PACK_JSON, abi=age)
    remedy = "upgrade kernelmint" if age else "rebuild the pack"
    fails(site, OTHERS, f"version {age} of the ABI", f"runtime has version {_native.abi}", remedy)
    works(site)


def test_kernels_of_an_instruction_set_that_is_not_here_are_not_available(site):
    """A folder of another machine: its CPU kernels are listed, and refused with the reason."""
    edit(second_pack(site) / PACK_JSON, isas=["elbrus"])
    code = "import runtime; i = runtime.kernels('hstu_bsa', 'cpu')[0]; print(i.available, i.reason)"
    shown = works(site, code)
    assert shown.startswith("False compiled for elbrus, this processor runs baseline")
    assert "KERNELMINT_ISAS=all" in shown
    works(site)


def test_a_library_of_another_abi_is_refused_by_itself(tmp_path):
    """Whatever its pack.json says: nothing but the version is read of it."""
    source = tmp_path / "old.cpp"
    source.write_text(
        "static const unsigned abi = 7;\n"
        'extern "C" const void* kernelmint_library(const void*) { return &abi; }\n'
    )
    library = tmp_path / "old.so"
    subprocess.run(["c++", "-shared", "-fPIC", source, "-o", library], check=True)
    with pytest.raises(runtime.PackError, match=rf"version 7 .* version {_native.abi}$"):
        _native.Library(str(library))


def test_a_shared_library_that_is_no_packs_is_refused(tmp_path):
    source, library = tmp_path / "x.cpp", tmp_path / "x.so"
    source.write_text("int x;\n")
    subprocess.run(["c++", "-shared", "-fPIC", source, "-o", library], check=True)
    with pytest.raises(runtime.PackError, match=r"it has no kernelmint_library$"):
        _native.Library(str(library))
    with pytest.raises(runtime.PackError, match=r"x\.cpp: not a shared library$"):
        _native.Library(str(source))
    with pytest.raises(runtime.PackError, match=r"No such file or directory$"):
        _native.Library(str(tmp_path / "none.so"))


@pytest.mark.parametrize("part", [0, 1, 63, 64, 4096, 0.5, 0.999])
def test_a_library_that_was_cut_short_is_an_error_and_no_crash(tmp_path, part):
    library = shutil.copy(OWN.library("hstu_bsa"), tmp_path)
    library = Path(library)
    size = library.stat().st_size
    with library.open("r+b") as file:
        file.truncate(part if isinstance(part, int) else int(part * size))
    with pytest.raises(runtime.PackError, match=r"not a shared library|cut short") as caught:
        _native.Library(str(library))
    assert str(library) in str(caught.value)


def test_a_pack_with_such_a_library_keeps_no_other_from_working(site):
    library = second_pack(site) / "hstu_bsa.so"
    with library.open("r+b") as file:
        file.truncate(100_000)
    fails(site, OTHERS, "pack other (other 0.1.0, ", str(library), "reinstall it")
    works(site)


def test_a_library_of_another_build_is_refused_naming_both(site):
    other = second_pack(site)
    edit(other / PACK_JSON, fingerprint="0123456789abcdef")
    fails(site, OTHERS, OWN.fingerprint, "0123456789abcdef", "reinstall it")
    works(site)


def test_a_manifest_of_other_generated_code_is_refused_naming_both(site):
    path = second_pack(site) / "manifest.json"
    path.write_text(path.read_text().replace(OWN.generated["hstu_bsa"], "0123456789abcdef"))
    fails(site, OTHERS, OWN.generated["hstu_bsa"], "0123456789abcdef", "reinstall it")
    works(site)


DAMAGES = [b"", b"{", b"[]", b"{}", b"[" * 100_000, b"\xff", b'{"format": "\\ud800"}', b"\0", None]
SPOILED = """
import pathlib, runtime
for damage in {damages!r}:
    path = pathlib.Path({path!r})
    path.unlink(missing_ok=True)
    if damage is not None:
        path.write_bytes(damage)
    try:
        runtime.load_pack(path.parent)
        runtime.kernels("hstu_bsa")
    except runtime.PackError as error:
        print(error)
"""


@pytest.mark.parametrize("name", [PACK_JSON, "manifest.json"])
def test_damaged_files_are_errors_that_name_the_pack_and_the_file(site, name):
    path = second_pack(site) / name
    shutil.rmtree(site / "other-0.1.0.dist-info")
    lines = works(site, SPOILED.format(damages=DAMAGES, path=str(path))).splitlines()
    assert len(lines) == len(DAMAGES)
    for line in lines:
        assert line.startswith(f"pack {'_pack' if name == PACK_JSON else 'other'} ({path.parent})")
        assert name in line
        assert line.endswith(("reinstall it", "upgrade the older of the two"))


def test_a_pack_that_cannot_be_read_is_an_error_at_listing_time_alone(site):
    path = second_pack(site) / PACK_JSON
    path.write_text("{")
    fails(site, "import runtime; runtime.kernels()", f"pack other (other 0.1.0, {path.parent})")
    works(site)


def test_a_damaged_face_is_an_error_that_names_it(site):
    path = second_pack(site) / "python/hstu_bsa.py"
    path.write_text("no python")
    fails(site, OTHERS, str(path), "reinstall it")


INFO = "import runtime.__main__ as m; m.show(m.collect())"


def damage_manifest(pack):
    (pack / "manifest.json").unlink()


def damage_report(pack):
    (pack / "ptxas.csv").write_text('kernel_config,used_registers\n"x,y\0,"\n3,many\n')


@pytest.mark.parametrize("damage", slow_after(1, [damage_manifest, damage_report]))
def test_a_pack_whose_files_are_damaged_hurts_itself_alone(site, damage):
    """Fronts and `kernelmint info` look at all packs' kernels; a list of all names the pack."""
    other = second_pack(site)
    damage(other)
    q = "*[torch.ones(1, 3, 1, 64)] * 3"
    works(site, f"import torch, runtime; print(runtime.attention({q}).sum(), runtime.targets())")
    assert f"pack other (other 0.1.0, {other})" in works(site, INFO)
    works(site, "import runtime; assert runtime.kernels('flash_forward')")
    fails(site, "import runtime; runtime.kernels()", f"pack other (other 0.1.0, {other})")
    fails(site, OTHERS, f"pack other (other 0.1.0, {other})", "reinstall it")


SCHEMA = "hstu_bsa(str key, Tensor q) -> Tensor"


DAMAGED = [
    ({"abi": float("inf")}, "abi: got inf, expected an integer"),
    ({"abi": "11"}, "abi: got '11', expected an integer"),
    ({"name": 3}, "name: got 3, expected a string"),
    ({"name": "Other/.."}, "the name 'Other/..'"),
    ({"operators": {"hstu_bsa": ["no schema"]}}, "operators.hstu_bsa: got 'no schema'"),
    ({"operators": {"hstu_bsa": ["hstu_bsa(Tensor q"]}}, "operators.hstu_bsa: expected"),
    ({"operators": {"hstu_bsa": SCHEMA}}, "operators.hstu_bsa: got 'hstu_bsa(str key"),
    ({"operators": {"hstu_bsa": [SCHEMA] * 2}}, "operators.hstu_bsa: got 'hstu_bsa, hstu_bsa'"),
    ({"operators": {"flash_forward": []}}, "operators: got those of flash_forward"),
    ({"generated": {"hstu_bsa": 3}}, "generated.hstu_bsa: got 3, expected a string"),
    ({"fronts": [{"family": "hstu_bsa", "module": 1, "function": "f"}]}, "fronts[0].module"),
    (
        {"architectures": ["sm_80"]},
        "architectures: got 'sm_80', expected names such as 80, 90a or 100f",
    ),
    ({"specs": {"kernel_specs": ["a"]}}, "specs.kernel_specs: got ['a'], expected a string"),
]


@pytest.mark.parametrize(("values", "message"), slow_after(3, DAMAGED))
def test_a_damaged_pack_json_is_named_with_its_member_and_hurts_itself_alone(site, values, message):
    other = second_pack(site)
    edit(other / PACK_JSON, **values)
    fails(
        site, "import runtime; runtime.kernels()", str(other / PACK_JSON), message, "reinstall it"
    )
    works(site)


def test_a_family_named_as_another_packs_operator_is_an_error_that_names_both(site):
    """torch.ops.kernelmint has one function of a name."""
    other = second_pack(site)
    record = json.loads((other / PACK_JSON).read_text())
    name = "flash_forward_out"
    schema = record["operators"]["hstu_bsa"][0].replace("hstu_bsa", name)
    edit(
        other / PACK_JSON, generated={name: "1"}, operators={name: [schema]}, fronts=[], targets=[]
    )
    one, two = "the operator flash_forward_out of flash_forward in pack kernelmint (", str(other)
    fails(site, "import runtime; runtime.kernels()", one, two, "have one name: uninstall one")
    shutil.rmtree(site / "other-0.1.0.dist-info")
    fails(
        site, f"import runtime; runtime.load_pack({str(other)!r})", "flash_forward_out", str(other)
    )
    works(site)


def test_a_checkout_is_imported_beside_a_pack_that_clashes_with_its_own(tmp_path):
    own = next(pack for pack in runtime_packs.all_packs() if pack.name == "kernelmint")
    record = json.loads((own.folder / "pack.json").read_text())
    record |= {"name": "other", "fronts": [], "operators": {"flash_forward": ["flash_forward()"]}}
    record["generated"] = {"flash_forward": "0"}
    folder, about = tmp_path / "other/_pack", tmp_path / "other-1.dist-info"
    folder.mkdir(parents=True)
    about.mkdir()
    (folder / "pack.json").write_text(json.dumps(record))
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[kernelmint.packs]\nother = other._pack\n")
    code = """
import runtime
try: runtime.kernels("flash_forward")
except ImportError as error: print(error)
try: runtime.attention
except AttributeError as error: print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("flash_forward is in pack kernelmint (") == 2
    assert "and in pack other (" in done.stdout


def test_many_threads_load_one_pack(site):
    other = second_pack(site)
    shutil.rmtree(site / "other-0.1.0.dist-info")
    works(
        site,
        f"""
import concurrent.futures, threading, runtime
together = threading.Barrier(16)
def load(i):
    together.wait()
    return runtime.load_pack({str(other)!r})
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    assert len(set(pool.map(load, range(16)))) == 1
""",
    )


def test_the_specs_that_an_installed_pack_was_built_of_are_loaded(site, monkeypatch) -> None:
    """After `pip install .` of their project, as pip notes it (PEP 610)."""
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(site / "cache"))
    second_pack(site)
    specs = site / "project/kernel_specs"
    shutil.copytree(OWN.specs["kernel_specs"] / "hstu/hstu_bsa", specs / "hstu/hstu_bsa")
    for path in (OWN.specs["kernel_specs"] / "hstu").glob("*.*"):
        if path.is_file():
            shutil.copy(path, specs / "hstu")
    load = f"import runtime; print(runtime.load({str(specs)!r}))"
    fails(site, load, "hstu_bsa", "is already in pack other")
    record = {"url": (site / "project").as_uri(), "dir_info": {}}
    (site / "other-0.1.0.dist-info/direct_url.json").write_text(json.dumps(record))
    assert "hstu_bsa.cpu." in works(site, load)


class TestLoadPack:
    def test_a_folder(self, site):
        other = second_pack(site)
        shutil.rmtree(site / "other-0.1.0.dist-info")
        code = f"import runtime; p = runtime.load_pack({str(other)!r}); {OTHERS}; print(p.name)"
        assert works(site, code).strip() == "other"
        works(site, f"import runtime, torch; runtime.load_pack({str(other)!r}); "
              "torch.ops.kernelmint.hstu_bsa; runtime.hstu_attention_with_bsa")  # fmt: skip

    def test_its_functions_are_pickled_by_their_name(self, site):
        """A process that has not loaded it is told which function kernelmint lacks there."""
        other = second_pack(site)
        shutil.rmtree(site / "other-0.1.0.dist-info")
        for file in (SOURCE.parent / "kernelmint").glob("*.py"):
            shutil.copy(file, site / "kernelmint")
        load = f"import kernelmint, pickle; kernelmint.load_pack({str(other)!r}); "
        data = works(site, load + "print(pickle.dumps(kernelmint.hstu_attention_with_bsa))")
        again = f"print(pickle.loads({data.strip()}).__name__)"
        assert works(site, load + again).strip() == "hstu_attention_with_bsa"
        line = last_line(import_copy(site, f"import pickle; {again}"))
        assert "Can't get attribute 'hstu_attention_with_bsa' on <module 'kernelmint'" in line

    def test_twice_is_once(self):
        assert runtime.load_pack(OWN.folder) is OWN

    def test_a_family_that_is_there_already(self, tmp_path):
        folder = shutil.copytree(OWN.folder, tmp_path / "copy")
        with pytest.raises(runtime.PackError, match="is already in pack kernelmint") as caught:
            runtime.load_pack(folder)
        assert str(folder) in str(caught.value)

    def test_no_pack(self, tmp_path):
        with pytest.raises(
            runtime.PackError, match=re.escape(f"there is no {tmp_path / PACK_JSON}")
        ):
            runtime.load_pack(tmp_path)


@pytest.mark.parametrize("family", OWN.families)
def test_a_library_exports_its_entry_and_needs_no_other_library(family):
    """No symbol meets PyTorch's, Python's or another pack's."""
    path = OWN.library(family)
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["kernelmint_library"]
    dynamic = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic.stdout))
    assert needed <= {
        "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
        "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1",
    }  # fmt: skip


def test_the_host_exports_its_module_alone():
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", Path(_native.__file__)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["PyInit__native"]


def test_a_changed_header_of_an_editable_pack_is_named(site, tmp_path):
    project = tmp_path / "project"
    specs = next(iter(OWN.specs.values()))
    shutil.copytree(specs, project / specs.name, ignore=shutil.ignore_patterns("__pycache__"))
    edit(site / "kernelmint/_pack" / PACK_JSON, specs={specs.name: str(project / specs.name)})
    quiet = import_copy(site, CALL)
    assert quiet.returncode == 0
    assert "changed since" not in quiet.stderr
    header = project / "kernel_specs/attention/flash_forward/cpu.h"
    header.write_text(header.read_text() + "// edited\n")
    result = import_copy(site, CALL)
    assert result.returncode == 0, result.stderr
    assert result.stdout == quiet.stdout
    (warning,) = [line for line in result.stderr.splitlines() if "changed since" in line]
    assert f"{header} changed since it was built" in warning
    assert f"pip install -e {project}" in warning
