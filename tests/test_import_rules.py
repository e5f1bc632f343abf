"""Who may enter where: the rules between the rooms, for Python, for C++ and for files."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[1]
CPP_SUFFIXES = {".h", ".cuh", ".cu", ".cpp", ".hpp"}
# What changes files, by any of its usual names.
WRITING = {
    "write_text", "write_bytes", "touch", "mkdir", "unlink", "rmdir", "rename", "replace",
    "remove", "removedirs", "rmtree", "makedirs", "symlink_to", "hardlink_to", "copyfile",
    "copytree", "copy", "copy2", "move",
}  # fmt: skip


def test_python_imports(monkeypatch, capsys) -> None:
    """codegen imports neither runtime, tools nor torch; runtime neither codegen nor tools."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    assert lint_imports(config_filename=".importlinter", no_cache=True) == 0, capsys.readouterr()


def modules_of(path: Path) -> set[str]:
    """The modules that a file of the checkout imports, within functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = path.parts[len(ROOT.parts) : -node.level] if node.level else ()
            module = ".".join([*package, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def dependencies(root: Path, *rooms: str) -> dict[str, set[str]]:
    """What each module of these packages needs: what it imports, within functions too, and the
    modules that it names to have them imported or run, as "a.b" or "a/b.py"."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for room in rooms
        for path in sorted((root / room).rglob("*.py"))
    }
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        named = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) + 1 - node.level]
                names = [*above, node.module] if node.level else [node.module]
                base = ".".join(filter(None, names))
                for alias in node.names:
                    name = f"{base}.{alias.name}"
                    if not root.joinpath(*name.split(".")).with_suffix(".pyi").is_file():
                        named.add(name if name in files else base)  # else the extension
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.removesuffix(".py").replace("/", ".")
                if "." in text and text != module:
                    named.add(text.removeprefix("kernelmint.") if "tools" in text else text)
        found[module] = named & files.keys() - {module}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that need each other."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        pending = [start]
        while pending:
            new = graph[pending.pop()] - seen
            seen |= new
            pending += new
        return seen

    reach = {module: reached(module) for module in graph}
    mutual = {m: frozenset(o for o in reach[m] if m in reach[o]) for m in graph if m in reach[m]}
    return [set(found) for found in sorted(set(mutual.values()), key=sorted)]


def test_no_module_needs_what_needs_it() -> None:
    """No circle and no arrow up, late imports and what is run by its path included."""
    rooms = ("codegen", "runtime", "tools", "kernelmint")  # the lowest first
    graph = dependencies(ROOT, *rooms)
    assert circles(graph) == []

    def height(module: str) -> int:
        installs = module.startswith("tools.build.")  # this project; nothing imports it
        return len(rooms) if installs else rooms.index(module.split(".")[0])

    upwards = [
        (module, other)
        for module, needed in graph.items()
        for other in needed
        if height(other) > height(module)
    ]
    assert upwards == []
    assert "codegen.build.nvcc" in graph["kernelmint.backend"]  # runs it by its path
    assert "runtime.ondemand.kernels" in graph["runtime.finding"]  # in a function


@pytest.mark.parametrize(
    "late",
    [
        "def f():\n    from planted import one",
        "def f():\n    from . import one",
        "import importlib\nimportlib.import_module('planted.one')",
        "import runpy\nrunpy.run_path('planted/one.py')",
    ],
)
def test_a_planted_circle_is_seen(tmp_path, late) -> None:
    (tmp_path / "planted/inner").mkdir(parents=True)
    for name, text in (
        ("__init__", ""), ("one", "from planted.inner import two"),
        ("inner/__init__", ""), ("inner/two", "from planted import three"), ("three", late),
    ):  # fmt: skip
        (tmp_path / f"planted/{name}.py").write_text(text)
    assert circles(dependencies(tmp_path, "planted")) == [
        {"planted.one", "planted.inner.two", "planted.three"}
    ]


def packages_of(path: Path) -> set[str]:
    return {module.split(".")[0] for module in modules_of(path)}


@pytest.mark.parametrize(
    "name", ["codegen/core/staleness.py", "codegen/build/pack_json.py", "codegen/ptxas/collect.py"]
)
def test_what_the_build_runs_needs_the_standard_library_alone(name) -> None:
    """They run by path in a build's environment, where the project's requirements are absent."""
    pending, seen = [ROOT / name], set()
    while pending:
        path = pending.pop()
        seen.add(path)
        own = {p for p in packages_of(path) if (ROOT / p).is_dir()}
        assert packages_of(path) - own <= set(sys.stdlib_module_names), path
        files = {ROOT / (module.replace(".", "/") + ".py") for module in modules_of(path)}
        pending += [file for file in files - seen if file.is_file()]


def test_tools_are_found_under_any_name() -> None:
    """In a wheel they lie below kernelmint; Python of specs comes in at one place alone, and none
    names a family, unless one is the example of a demonstration or a benchmark."""
    for path in (ROOT / "tools").rglob("*.py"):
        absolute = {
            node.module.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module and not node.level
        }
        assert "tools" not in absolute, path
        assert "kernel_specs" not in packages_of(path), path
        named = "specs_module" in path.read_text()
        assert named == (path == ROOT / "tools/families.py"), path
        sample = path.name.startswith("bench_") or path.name in ("demo.py", "symbols.py")
        names = re.findall(r"\b(flash_forward|hstu\w*|block_sparse)\b", path.read_text())
        assert not names or sample, (path, names)


def test_the_runtime_runs_no_file_by_its_path() -> None:
    """What it uses, it imports, where the rules above see it."""
    for path in (ROOT / "runtime").rglob("*.py"):
        assert "runpy" not in packages_of(path), path
        assert not re.search(r"(tools|codegen|ptx_report)/\w+", path.read_text()), path


def is_front(path: Path) -> bool:
    return path.name in (
        "front.py",
        "fronts.py",
        "cache.py",
        "checks.py",
        "families.py",
        "flash_attn.py",
        "flops.py",
        "gradients.py",
        "sdpa.py",
    )


def test_a_family_imports_nothing_of_the_house() -> None:
    """An oracle is torch alone; a family's front uses the runtime, its tests the tools as well; its
    hooks use the tools under the name that they have in a wheel, too."""
    for path in (ROOT / "kernel_specs").rglob("*.py"):
        allowed = {"runtime"} if is_front(path) else set()
        if is_for_tools(path):
            allowed = {"runtime", "codegen"}
        if path.name.startswith("test_"):
            allowed = {"runtime", "tools"}
        assert not packages_of(path) & {"codegen", "tools", "runtime"} - allowed, path


def is_for_tools(path: Path) -> bool:
    return "tools" in (path.stem, path.parent.name)


def test_an_oracle_never_serves_production() -> None:
    """No front reaches a reference or hooks of the tools, by any way of imports; the runtime names
    no family's module."""
    pending = [path for path in (ROOT / "kernel_specs").rglob("*.py") if is_front(path)]
    assert len(pending) >= 3
    seen = set()
    while pending:
        path = pending.pop()
        seen.add(path)
        assert path.name != "reference.py", f"{path} is reached from a front"
        assert not is_for_tools(path), f"{path} is reached from a front"
        files = {ROOT / (module.replace(".", "/") + ".py") for module in modules_of(path)}
        pending += [f for f in files - seen if f.is_file() and "kernel_specs" in f.parts]
    for path in (ROOT / "runtime").rglob("*.py"):
        assert "kernel_specs" not in packages_of(path), path


def test_no_front_calls_another_through_the_runtime() -> None:
    """A front as `runtime.name` is looked up by its name: a circle that no import shows."""
    modules = {path.stem for path in (ROOT / "runtime").iterdir()}
    for path in (ROOT / "kernel_specs").rglob("*.py"):
        if not is_front(path):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert "runtime" not in {alias.name for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom) and node.module == "runtime":
                assert {alias.name for alias in node.names} <= modules, path


def writes(path: Path) -> Iterator[str]:
    """The calls of a file that write to the file system."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "replace" and not (isinstance(node.func, ast.Attribute) and len(node.args) == 1):
            continue  # of a str, or of a dataclass
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        texts = [str(a.value) for a in arguments if isinstance(a, ast.Constant)]
        for_writing = any(re.fullmatch("[rbt+]*[wax+][bt+]*", text) for text in texts)
        if name in WRITING or (name in ("open", "fdopen") and for_writing):
            yield f"{path.name}:{node.lineno}: {name}"


def test_only_the_writer_writes_into_generated() -> None:
    """codegen's own files: the writer; new, which writes into a folder of specs; archives, what
    fetches and unpacks them, and excerpts, into the cache; and packs, into a pack. What a build
    runs writes into the build's folder."""
    names = ["tree/writer.py", "scaffold/__init__.py", "core/packs.py", "core/trust.py"]
    names += [f"sources/{name}.py" for name in ("archives", "fetch", "unpack", "excerpts")]
    allowed = {ROOT / "codegen" / name for name in names}
    of_builds = {*(ROOT / "codegen/build").glob("*.py"), *(ROOT / "codegen/ptxas").glob("*.py")}
    for path in {*(ROOT / "codegen").rglob("*.py")} - of_builds:
        assert bool(list(writes(path))) == (path in allowed), path


def foreign_includes(specs: Path, include: Path, generated: Path | None = None) -> list[str]:
    """The includes that are neither of a family's own folder, in the specs or generated, nor of its
    group's own files, nor of runtime/include."""
    wrong = []
    for path in sorted(specs.rglob("*")):
        if path.suffix not in CPP_SUFFIXES:
            continue
        folder = path.parent.relative_to(specs)
        shared = [group for group in folder.parents if not (specs / group / "family.yaml").exists()]
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            allowed = [folder, *shared[:-1]]
            own = Path(name).parent in allowed and (specs / name).is_file()
            if generated is not None and Path(name).parent == Path(folder.name):
                own |= (generated / name).is_file()
            if ".." in name or not (own or (include / name).is_file()):
                wrong.append(f"{path.relative_to(specs)} includes {name}")
    return wrong


def test_a_familys_files_include_only_their_own_folder_and_runtime_include() -> None:
    wrong = foreign_includes(ROOT / "kernel_specs", ROOT / "runtime/include", ROOT / "generated")
    assert wrong == []


def test_a_foreign_include_is_seen(tmp_path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/cpu.h").write_text("")
    (tmp_path / "one/cpu.h").write_text('#include "other/cpu.h"\n#include "dtypes.h"\n')
    wrong = foreign_includes(tmp_path, ROOT / "runtime/include")
    assert wrong == ["one/cpu.h includes other/cpu.h"]


def test_a_group_shares_its_own_files_and_no_others(tmp_path) -> None:
    for name in ("group/one/cpu.h", "group/other/cpu.h", "group/shared.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    own, shared, foreign = (
        f'#include "group/{name}"\n' for name in ("one/cpu.h", "shared.h", "other/cpu.h")
    )
    (tmp_path / "group/one/sm80.cuh").write_text(own + shared + foreign)
    (tmp_path / "group/more.h").write_text(shared + foreign)
    assert foreign_includes(tmp_path, ROOT / "runtime/include") == [
        "group/more.h includes group/other/cpu.h",
        "group/one/sm80.cuh includes group/other/cpu.h",
    ]


def cpp_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (p for p in (ROOT / folder).rglob("*") if p.suffix in CPP_SUFFIXES)


def test_runtime_include_includes_only_itself() -> None:
    for path in cpp_files("runtime/include"):
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            found = [path.parent / name, ROOT / "runtime/include" / name]
            assert any(p.is_file() for p in found), f"{path} includes {name}"


def test_only_runtime_src_and_generated_bindings_include_nanobind() -> None:
    for path in cpp_files("kernel_specs", "runtime/include"):
        assert "nanobind" not in path.read_text(), path


def test_raw_ptx_stands_only_in_runtime_include_ptx() -> None:
    for path in cpp_files("kernel_specs", "runtime"):
        if path.suffix in {".cuh", ".cu"} and path.parent != ROOT / "runtime/include/ptx":
            # An empty template is not an instruction: it only keeps the compiler from reordering.
            assert not re.search(r'\basm\s*(volatile\s*)?\(\s*"[^"]', path.read_text()), path
