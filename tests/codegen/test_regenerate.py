"""What regenerate and check do to a tree."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

EXPECTED_COUNTS = re.compile(
    r"generated: (\d+) kernels?; (\d+) files? written, (\d+) unchanged, (\d+) removed\n"
)


def regenerate(workspace, *arguments: str) -> tuple[int, int, int, int]:
    result = workspace.run("regenerate", *arguments)
    assert result.status == 0, result.output
    match = EXPECTED_COUNTS.fullmatch(result.stdout)
    assert match, result.stdout
    return tuple(map(int, match.groups()))


def is_kernel_shard(name: str) -> bool:
    return re.fullmatch(r"demo/(cpu|sm80)_\d+\.(cu|cpp)", name) is not None


def test_prints_written_unchanged_and_removed_counts(workspace) -> None:
    kernels, written, unchanged, removed = regenerate(workspace)
    # sm80: 2 dtypes, causal or not, the (tile, warps) that the constraints leave; cpu: 3 * 2.
    tiles = sum(t % (8 * w) == 0 and w <= 8 for t in (32, 64, 128) for w in (1, 2, 4, 8, 16))
    assert kernels == 4 * tiles + 6
    assert written == len(workspace.tree())
    assert (unchanged, removed) == (0, 0)


def test_an_identical_second_run_writes_0_files_and_touches_no_mtime(workspace) -> None:
    regenerate(workspace)
    before = workspace.times()
    _, written, unchanged, removed = regenerate(workspace)
    assert (written, unchanged, removed) == (0, len(before), 0)
    assert workspace.times() == before


def test_deterministic_bytes_under_any_hash_seed(workspace) -> None:
    trees = []
    for seed in ("0", "1", "4242"):
        result = workspace.python("-m", "codegen", "regenerate", PYTHONHASHSEED=seed)
        assert result.status == 0, result.output
        trees.append(workspace.tree())
        for name in trees[-1]:
            (workspace.out / name).unlink()
    assert trees[0] == trees[1] == trees[2]


def test_changing_one_constraint_value_rewrites_only_the_shards_it_affects(workspace) -> None:
    regenerate(workspace)
    before = workspace.tree()
    old = {k["key"]: k["file"] for k in kernels(workspace)}
    workspace.edit("sm80.yaml", "limits: {threads: 256}", "limits: {threads: 128}")
    regenerate(workspace)
    after = workspace.tree()
    new = {k["key"]: k["file"] for k in kernels(workspace)}
    assert 0 < len(new) < len(old)
    # If enough is gone, what is left of a file joins the other half of what it was split from.
    moved = {key for key in new if new[key] != old[key]}
    assert len(moved) < len(new) / 2
    affected = {old[key] for key in (old.keys() - new.keys()) | moved} | {new[k] for k in moved}
    changed = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    assert {n for n in changed if is_kernel_shard(n)} == affected
    assert changed - affected == {
        "demo/sm80_table.cpp",
        "files.cmake",
        "manifest.json",
        "demo/library.cpp",
    }


def test_adding_a_kernel_touches_one_shard_and_the_table(workspace) -> None:
    regenerate(workspace)
    before = workspace.tree()
    workspace.edit(
        "cpu.yaml", "- {tile: 64}", "- {tile: 64}\n    - {tile: 1, dtype: f32, causal: true}"
    )
    regenerate(workspace)
    after = workspace.tree()
    changed = {n for n in after if before.get(n) != after[n]}
    assert len([n for n in changed if is_kernel_shard(n)]) <= 2  # one, or the halves of one
    assert "demo/cpu_table.cpp" in changed
    assert "demo/sm80_table.cpp" not in changed


def kernels(workspace) -> list[dict]:
    manifest = json.loads((workspace.out / "manifest.json").read_text())
    return [k for f in manifest["families"] for t in f["targets"] for k in t["kernels"]]


def test_orphans_go_and_files_it_did_not_make_stay(workspace) -> None:
    regenerate(workspace)
    (workspace.out / "README").write_text("mine")
    (workspace.out / "demo/notes.txt").write_text("mine")
    (workspace.demo / "sm80.yaml").unlink()
    gone = [name for name in workspace.tree() if name.startswith("demo/sm80_")]
    _, _, _, removed = regenerate(workspace)
    assert removed == len(gone) > 0
    tree = workspace.tree()
    assert not any(name.startswith("demo/sm80_") for name in tree)
    assert tree["README"] == tree["demo/notes.txt"] == b"mine"


def test_check_as_json(workspace) -> None:
    regenerate(workspace)
    result = workspace.run("check", "--json")
    assert (result.status, json.loads(result.stdout)["stale"]) == (0, False)
    (workspace.out / "demo/args.h").write_text("edited")
    result = workspace.run("check", "--json")
    assert result.status == 1
    assert json.loads(result.stdout) == {
        "stale": True,
        "differing": ["generated/demo/args.h"],
        "orphans": [],
        "commands": ["kernelmint regenerate"],
    }


def test_a_family_that_goes_leaves_no_folder(workspace) -> None:
    workspace.run("new", "other")
    regenerate(workspace)
    assert (workspace.out / "other").is_dir()
    for file in (workspace.root / "kernel_specs/other").iterdir():
        file.unlink()
    regenerate(workspace)
    assert not (workspace.out / "other").exists()


def test_a_file_in_the_way_is_not_overwritten(workspace) -> None:
    (workspace.out / "demo").mkdir(parents=True)
    (workspace.out / "demo/args.h").write_text("mine")
    result = workspace.run("regenerate")
    assert result.status == 2
    assert "generated/demo/args.h is in the way: codegen did not make it" in result.stderr
    assert workspace.tree() == {"demo/args.h": b"mine"}


def test_a_manifest_cannot_lead_out_of_the_tree(workspace) -> None:
    victim = workspace.root / "victim"
    victim.write_text("mine")
    regenerate(workspace)
    manifest = json.loads((workspace.out / "manifest.json").read_text())
    manifest["outputs"] |= {"../victim": "", str(victim): ""}
    (workspace.out / "manifest.json").write_text(json.dumps(manifest))
    regenerate(workspace)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("list_name", ["manifest.json", ".regenerate.json"])
def test_a_forged_list_deletes_nothing_that_codegen_did_not_make(workspace, list_name) -> None:
    regenerate(workspace)
    (workspace.out / "notes.txt").write_text("mine")
    path = workspace.out / list_name
    if list_name == "manifest.json":
        forged = json.loads(path.read_text())
        forged["outputs"]["notes.txt"] = hashlib.sha256(b"mine").hexdigest()
    else:
        forged = ["notes.txt"]
    path.write_text(json.dumps(forged))
    assert "notes.txt" not in workspace.run("check").stdout.replace('"notes.txt"', "")
    regenerate(workspace)
    assert (workspace.out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("command", ["regenerate", "check"])
def test_a_link_within_the_tree_is_not_followed_out_of_it(workspace, command) -> None:
    regenerate(workspace)
    elsewhere = workspace.root / "elsewhere"
    (workspace.out / "demo").rename(elsewhere)
    (workspace.out / "demo").symlink_to(elsewhere)
    workspace.edit("cpu.yaml", "tile: 64", "tile: 32")
    before = {path: path.read_bytes() for path in elsewhere.iterdir()}
    result = workspace.run(command)
    assert result.status == 2
    assert (
        "generated/demo is a symbolic link: codegen writes nothing through links" in result.stderr
    )
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_the_tree_itself_may_be_behind_a_link(workspace) -> None:
    (workspace.root / "elsewhere").mkdir()
    workspace.out.symlink_to(workspace.root / "elsewhere")
    regenerate(workspace)
    assert workspace.run("check").status == 0


def test_an_up_to_date_tree_on_a_read_only_file_system_is_fine(workspace) -> None:
    """A real mount: root may write where permissions forbid it."""
    regenerate(workspace)
    mount = "mount --bind generated generated && mount -o remount,bind,ro generated"
    script = f"{mount} && ! touch generated/file && {sys.executable} -m codegen"
    unshare = ["unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*unshare, "sh", "-c", f"{script} {' '.join(arguments)}"]
        return subprocess.run(
            command,
            cwd=workspace.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    if subprocess.run([*unshare, "sh", "-c", mount], cwd=workspace.root, check=False).returncode:
        pytest.skip("no private mount here")
    done = run("regenerate")
    assert done.returncode == 0, done.stderr
    assert "0 files written" in done.stdout
    assert run("check").returncode == 0
    workspace.edit("cpu.yaml", "tile: 64", "tile: 32")
    done = run("regenerate")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Read-only file system" in done.stderr


@pytest.mark.parametrize("name", ["with space", "a 'b' \"c\"", "a;b", "$(x)", "a\\b"])
def test_folders_of_any_printable_name(workspace, name) -> None:
    specs, out = f"{name} specs", f"{name} out"
    (workspace.root / "kernel_specs").rename(workspace.root / specs)
    assert workspace.run("regenerate", "--specs", specs, "--out", out).status == 0
    assert workspace.run("check", "--out", out).status == 0
    script = str(ROOT / "codegen/core/staleness.py")
    assert workspace.python("-S", "-E", script, out).status == 0
    (workspace.root / out / "demo/library.cpp").unlink()
    stale = workspace.python("-S", "-E", script, out).stdout
    command = stale.splitlines()[-1].removeprefix("fix it with: ")
    program, *arguments = shlex.split(command)
    assert program == "kernelmint"
    assert workspace.python("-m", program, *arguments).status == 0  # it fixes it as it stands
    assert workspace.run("check", "--out", out).status == 0


def test_a_folder_whose_name_breaks_lines_is_refused(workspace) -> None:
    result = workspace.run("regenerate", "--out", "a\nb")
    assert result.status == 2
    assert result.stderr == "error: 'a\\nb' cannot be written into a file: rename it\n"


def test_each_file_names_its_spec_its_template_and_the_hash_of_what_follows(workspace) -> None:
    regenerate(workspace)
    for name, content in workspace.tree().items():
        if name == "manifest.json":
            continue
        first, second, body = content.decode().split("\n", 2)
        assert re.fullmatch(
            r"(//|#) Generated by codegen from kernel_specs(/demo/\w+\.yaml)? with [\w.]+\.mako; "
            r"do not edit\.",
            first,
        ), name
        assert second.endswith(hashlib.sha256(body.encode()).hexdigest())


def test_the_manifest_records_the_hash_of_every_input_and_output(workspace) -> None:
    regenerate(workspace)
    manifest = json.loads((workspace.out / "manifest.json").read_text())
    tree = workspace.tree()
    assert manifest["outputs"].keys() == tree.keys() - {"manifest.json"}
    for name, expected in manifest["outputs"].items():
        assert hashlib.sha256(tree[name]).hexdigest() == expected
    inputs = {os.path.normpath(workspace.out / name) for name in manifest["inputs"]}
    specs = ("family.yaml", "cpu.yaml", "sm80.yaml")
    assert inputs == {str(workspace.demo / name) for name in specs}


def test_a_file_is_named_for_its_target_and_numbered(workspace) -> None:
    regenerate(workspace)
    for kernel in kernels(workspace):
        family, target, _ = kernel["key"].split(".")
        suffix = "cpp" if target == "cpu" else "cu"
        assert re.fullmatch(rf"{family}/{target}_\d+\.{suffix}", kernel["file"]), kernel


# ---- check


def test_check_is_clean_after_regenerate(workspace) -> None:
    regenerate(workspace)
    result = workspace.run("check")
    assert (result.status, result.stdout) == (0, "generated is up to date\n")


def test_check_prints_a_unified_diff_and_the_command_that_mends_it(workspace) -> None:
    regenerate(workspace)
    before = workspace.tree()
    workspace.edit("sm80.yaml", "limits: {threads: 256}", "limits: {threads: 128}")
    short = workspace.run("check")
    result = workspace.run("check", "--all")
    assert short.status == result.status == 1
    lines = result.stdout.splitlines()
    assert len(lines) > 40
    rest = f"and {len(lines) - 40} more lines: --all shows them"
    assert short.stdout.splitlines() == [*lines[:40], rest]
    assert short.stderr == result.stderr
    assert "--- a/demo/sm80_table.cpp\n+++ b/demo/sm80_table.cpp\n@@" in result.stdout
    assert re.search(r'^-\s+\{\.key = "demo\.sm80\.bf16-t64-w8-auto"', result.stdout, re.M)
    assert result.stderr.endswith("fix it with:\n  kernelmint regenerate\n")
    assert workspace.tree() == before


def test_check_sees_an_edited_a_missing_and_an_orphaned_file(workspace) -> None:
    regenerate(workspace)
    tree = workspace.tree()
    (workspace.out / "demo/args.h").write_bytes(tree["demo/args.h"] + b"// edited\n")
    (workspace.out / "demo/library.cpp").unlink()
    (workspace.out / "demo/sm80_bf16_9.cu").write_bytes(tree["demo/family.cpp"])
    (workspace.out / "README").write_text("mine")
    result = workspace.run("check", "--all")
    assert result.status == 1
    assert "-// edited\n" in result.stdout
    assert "--- /dev/null\n+++ b/demo/library.cpp\n" in result.stdout
    assert "orphan: generated/demo/sm80_bf16_9.cu" in result.stdout
    commands = "  rm generated/demo/sm80_bf16_9.cu\n  kernelmint regenerate\n"
    assert result.stderr.endswith(f"fix it with:\n{commands}")
    (workspace.out / "demo/sm80_bf16_9.cu").unlink()  # what the commands say
    regenerate(workspace)
    assert workspace.run("check").status == 0
    assert "README" not in result.output


def test_check_compares_with_the_selection_that_was_generated(workspace) -> None:
    regenerate(workspace, "--set", "small")
    assert workspace.run("check").status == 0
    regenerate(workspace, "--where", "tile == 64 and target == 'cpu'")
    assert workspace.run("check").status == 0
    assert len(kernels(workspace)) == 6
    (workspace.out / "demo/library.cpp").unlink()
    result = workspace.run("check")
    assert result.status == 1
    assert result.stderr.endswith(
        "  kernelmint regenerate --where 'tile == 64 and target == '\"'\"'cpu'\"'\"''\n"
    )


def test_check_of_other_folders(workspace) -> None:
    (workspace.root / "kernel_specs").rename(workspace.root / "specs")
    workspace.run("regenerate", "--specs", "specs", "--out", "tree")
    assert workspace.run("check", "--out", "tree").status == 0
    (workspace.root / "tree/demo/library.cpp").unlink()
    assert "regenerate --specs specs --out tree\n" in workspace.run("check", "--out", "tree").stderr


def test_check_without_a_tree(workspace) -> None:
    result = workspace.run("check", "--all")
    assert result.status == 1
    assert "+++ b/manifest.json" in result.stdout


# ---- killed runs


class Killer:
    """Kills regenerate at its n-th step on the file system, with no chance to clean up."""

    SCRIPT = """
import os, signal, sys
from pathlib import Path
step, left = os.environ["KILL_AT"], int(os.environ["KILL_AT"])
def dying(function):
    def run(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return run
for name in ("write_bytes", "replace", "unlink", "rmdir"):
    setattr(Path, name, dying(getattr(Path, name)))
from codegen.__main__ import main
main(["regenerate"])
"""


@pytest.fixture
def changed_spec(workspace):
    """A tree, then a spec that adds files, changes some and orphans others."""
    regenerate(workspace)
    workspace.edit("sm80.yaml", "tile: [32, 64, 128]", "tile: [64, 256]")
    workspace.edit("cpu.yaml", "- {tile: 64}", "- {tile: 16}")
    return workspace


def test_killed_at_any_step_the_next_run_mends_the_tree(changed_spec) -> None:
    workspace = changed_spec
    start = {name: (workspace.out / name).read_bytes() for name in workspace.tree()}
    regenerate(workspace)
    finished = workspace.tree()
    steps = 2 * len(finished)
    killed = 0
    for step in random.Random(1).sample(range(1, steps), 8):
        for name in workspace.tree():
            (workspace.out / name).unlink()
        for name, content in start.items():
            (workspace.out / name).parent.mkdir(exist_ok=True)
            (workspace.out / name).write_bytes(content)
        result = workspace.python("-c", Killer.SCRIPT, KILL_AT=str(step))
        killed += result.status == -signal.SIGKILL
        if result.status == -signal.SIGKILL and workspace.tree() != start:
            stale = workspace.python(str(ROOT / "codegen/core/staleness.py"), "generated")
            assert stale.status == 1
            assert workspace.run("check").status == 1
        regenerate(workspace)
        assert workspace.tree() == finished
        assert workspace.run("check").status == 0
    assert killed >= 4


def test_killed_then_the_spec_is_taken_back(changed_spec) -> None:
    """The files that only the killed run made are known as codegen's own."""
    workspace = changed_spec
    new = (workspace.demo / "sm80.yaml").read_text()
    start = workspace.tree()
    for step in (3, 8, 20, 30):
        workspace.write("sm80.yaml", new)
        result = workspace.python("-c", Killer.SCRIPT, KILL_AT=str(step))
        assert result.status == -signal.SIGKILL
        assert workspace.tree().keys() - start.keys()
        workspace.edit("sm80.yaml", "tile: [64, 256]", "tile: [32, 64, 128]")
        workspace.edit("cpu.yaml", "- {tile: 16}", "- {tile: 64}")
        regenerate(workspace)
        assert workspace.tree() == start
        workspace.edit("cpu.yaml", "- {tile: 64}", "- {tile: 16}")


def test_killed_at_random_moments(workspace) -> None:
    """Real kills of a real process, by the clock."""
    regenerate(workspace)
    expected = workspace.tree()
    command = [sys.executable, "-c", "from codegen.__main__ import main; main(['regenerate'])"]
    for delay in (0.2, 0.35, 0.5):
        for name in expected:
            (workspace.out / name).write_text("// Generated by codegen from another spec\n")
        with subprocess.Popen(
            command,
            cwd=workspace.root,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            time.sleep(delay)
            process.kill()
        regenerate(workspace)
        assert workspace.tree() == expected


def test_two_runs_at_once_do_not_mix(workspace) -> None:
    command = [sys.executable, "-m", "codegen", "regenerate"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.Popen(command, cwd=workspace.root, env=environment, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [run.wait() for run in runs] == [0, 0, 0]
    for run in runs:
        run.stdout.close()
    assert workspace.run("check").status == 0


# ---- staleness.py, as CMake runs it


def staleness(workspace) -> tuple[int, str]:
    script = str(ROOT / "codegen/core/staleness.py")
    # -S -E: no site-packages, so that nothing but the standard library can be used.
    result = workspace.python("-S", "-E", script, "generated")
    assert "Traceback" not in result.output
    return result.status, result.stdout


def test_a_fresh_tree_is_not_stale(workspace) -> None:
    regenerate(workspace)
    assert staleness(workspace) == (0, "")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda w: w.edit("sm80.yaml", "256", "128"), "kernel_specs/demo/sm80.yaml has changed"),
        (lambda w: w.write("sm90.yaml", "target: sm90"), "kernel_specs/demo/sm90.yaml is new"),
        (lambda w: (w.demo / "cpu.yaml").unlink(), "kernel_specs/demo/cpu.yaml is gone"),
        (lambda w: (w.out / "demo/library.cpp").unlink(), "generated/demo/library.cpp is gone"),
        (lambda w: (w.out / "demo/args.h").write_text(""), "generated/demo/args.h has changed"),
        (lambda w: (w.out / "manifest.json").unlink(), "there is no generated/manifest.json"),
        (lambda w: (w.out / "manifest.json").write_text("<<<<<<< ours"), "cannot be read"),
        (lambda w: (w.out / ".regenerate.json").write_text("[]"), "a regenerate was interrupted"),
        (
            lambda w: (w.root / "kernel_specs").rename(w.root / "away"),
            "the specs it was made from are gone: there is no kernel_specs",
        ),
    ],
)
def test_a_stale_tree_is_named_with_the_command_that_mends_it(workspace, damage, reason) -> None:
    regenerate(workspace)
    damage(workspace)
    status, output = staleness(workspace)
    assert status == 1
    assert reason in output
    assert output.endswith("fix it with: kernelmint regenerate\n")


def test_a_tree_of_another_codegen_is_built_and_checked_by_what_it_says(workspace) -> None:
    """The next release's codegen, in which a comment changed, takes a tree that is checked in."""
    regenerate(workspace)
    codegen = workspace.root / "codegen"
    shutil.copytree(ROOT / "codegen", codegen, ignore=shutil.ignore_patterns("__pycache__"))
    with (codegen / "__init__.py").open("a") as module:
        module.write("# another version\n")
    path = os.pathsep.join([str(workspace.root), sysconfig.get_path("purelib")])

    def its_own(*arguments: str) -> int:  # -S: no editable install comes first
        return workspace.python("-S", *arguments, PYTHONPATH=path).status

    assert its_own(str(codegen / "core/staleness.py"), "generated") == 0
    assert its_own("-m", "codegen", "check") == 0
    template = codegen / "emit/templates/args.h.mako"
    template.write_text(template.read_text() + "// more\n")
    assert its_own(str(codegen / "core/staleness.py"), "generated") == 0
    assert its_own("-m", "codegen", "check") == 1


def test_a_tree_of_another_format_is_stale(workspace) -> None:
    regenerate(workspace)
    path = workspace.out / "manifest.json"
    path.write_text(path.read_text().replace('"version": 1,', '"version": 7,'))
    status, output = staleness(workspace)
    assert status == 1
    assert "generated/manifest.json has version 7, but this Kernelmint builds version 1" in output


def test_a_tree_does_not_say_where_codegen_was(workspace) -> None:
    """It may be checked in, and checked with a codegen that is installed elsewhere."""
    regenerate(workspace)
    for content in workspace.tree().values():
        assert str(ROOT).encode() not in content
        assert b"site-packages" not in content


def test_the_check_waits_for_a_regenerate_that_is_writing(workspace) -> None:
    """It neither reads half a tree nor calls a running regenerate an interrupted one."""
    regenerate(workspace)
    expected = workspace.tree()
    folder = os.open(workspace.out, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # what regenerate holds
    (workspace.out / ".regenerate.json").write_text("[]")
    (workspace.out / "demo/library.cpp").unlink()
    script = str(ROOT / "codegen/core/staleness.py")
    with subprocess.Popen(
        [sys.executable, script, "generated"], cwd=workspace.root, stdout=subprocess.PIPE, text=True
    ) as check:
        with pytest.raises(subprocess.TimeoutExpired):
            check.wait(timeout=1)
        (workspace.out / "demo/library.cpp").write_bytes(expected["demo/library.cpp"])
        (workspace.out / ".regenerate.json").unlink()
        os.close(folder)
        assert check.communicate(timeout=60)[0] == ""
        assert check.returncode == 0


def test_a_python_without_the_requirements_is_told_which_package_is_missing() -> None:
    command = [sys.executable, "-S", "-m", "codegen", "check"]  # -S: without site-packages
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2  # 1 means that the tree is stale
    (line,) = done.stderr.splitlines()
    assert "lacks the package click: run `make build`, or `pip install -e .`" in line
