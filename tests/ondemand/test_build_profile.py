"""`kernelmint build-profile`: what the traces of nvcc and Clang say, and what it says of others."""

import json
import re
import shutil
import subprocess

import pytest
from click.testing import CliRunner

import runtime
from kernelmint.__main__ import main

NVCC = shutil.which("nvcc")
HAS_TRACES = NVCC and "--fdevice-time-trace" in subprocess.check_output([NVCC, "--help"], text=True)
SECOND = 1_000_000


def event(name, begin, seconds, detail=None, **more):
    args = {"args": {"detail": detail}} if detail else {}
    times = {"ts": begin * SECOND, "dur": seconds * SECOND}
    return {"ph": "X", "pid": 1, "tid": 1, "name": name, **times, **args, **more}


def source(phase, at, detail=None):
    """A header's begin or end, as Clang 19 and later write it."""
    args = {"args": {"detail": detail}} if detail else {}
    return {"ph": phase, "pid": 1, "tid": 1, "id": 0, "name": "Source", "ts": at * SECOND, **args}


EVENTS = [
    {},  # nvcc's first
    event("Frontend", 0, 10),
    event("Source", 1, 5, "/a/../a/outer.h"),
    source("b", 2, "/a/inner.h"),
    source("e", 4),
    event("InstantiateFunction", 6, 3, "f<int>::operator<<<f<g<1>>>"),
    event("InstantiateFunction", 7, 1, "f<long>::operator<<<2>"),
    event("Backend", 10, 4),
    event("OptFunction", 10, 1, "_Z4kernPfi"),
    event("Total Source", 0, 7, tid=2, args={"count": 2, "avg ms": 3500}),
    event("Optimizing compilation unit", 0, 2, pid=3, args={"name": "_Z4kernPfi"}),  # ptxas
]


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["build-profile", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def traces(tmp_path):
    (tmp_path / "compile_commands.json").write_text("[]")  # a folder of builds holds others
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"traceEvents": EVENTS}))
    return tmp_path


def test_seconds_are_ranked_by_what_took_them(traces):
    data = json.loads(run(traces, "--json"))
    rows = {
        kind: {row["name"]: (row["total"], row["self"], row["count"]) for row in ranking["rows"]}
        for kind, ranking in data["ranked"].items()
    }
    assert data["seconds"] == 32
    assert rows["unit"] == {f"{traces}/{name}": (16, 0, 1) for name in ("one", "two")}
    assert rows["header"] == {"/a/outer.h": (10, 6, 2), "/a/inner.h": (4, 4, 2)}
    assert rows["template"] == {"f::operator<<": (6, 6, 4)}  # one within the other, once
    function = "_Z4kernPfi" if "_Z4kernPfi" in rows["function"] else "kern(float*, int)"
    assert rows["function"] == {function: (6, 6, 4)}
    assert rows["phase"] == {"Frontend": (20, 4, 2), "Backend": (8, 6, 2)}
    table = run(traces, "--top", 1)
    assert re.search(r"^ +10\.000 +6\.000 +2  /a/outer\.h$", table, re.MULTILINE)
    assert "and 1 more, 4.000 s" in table
    assert "inner.h" not in table


def test_the_page_has_a_flame_graph_and_loads_nothing(traces):
    page = traces / "page.html"
    run(traces, "--html", page)
    text = page.read_text()
    assert not re.search(r"(src|href)=|@import|url\(|https?://", text)
    tree = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    (frontend,) = (child for child in tree[4] if child[1] == "Frontend")
    assert frontend[:4] == ["phase", "Frontend", 20, 2]
    (header,) = (child for child in frontend[4] if child[0] == "header")
    assert header[4] == [["header", "/a/inner.h", 4, 2, []]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"traceEvents": EVENTS})[:-9], "no whole time trace"),
        ("\0ELF", "no whole time trace"),
        ("[]", "not a time trace of nvcc or Clang"),
        ('{"traceEvents": {}}', "a time trace without events"),
        ('{"traceEvents": [1]}', "not a time trace of nvcc or Clang"),
        ('{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1}]}', "not a time trace"),
        (json.dumps({"traceEvents": [event("Frontend", 1, -1)]}), "begins at 1.0 s, and ends"),
        (json.dumps({"traceEvents": [event("Frontend", 1, float("nan"))]}), "ends at nan s"),
        (json.dumps({"traceEvents": [source("e", 1)]}), "not a time trace of nvcc or Clang"),
        ("[" * 200_000, "not a time trace of nvcc or Clang"),
    ],
)
def test_a_damaged_trace_is_an_error_that_names_the_file(tmp_path, text, message):
    trace = tmp_path / "damaged.json"
    trace.write_text(text)
    output = run(trace, code=1)
    assert output.startswith(f"Error: {trace}: ")
    assert message in output


def test_a_folder_without_traces_is_an_error_that_says_how_to_get_some(tmp_path):
    assert "kernelmint build --profile DIR" in run(tmp_path, code=1)


@pytest.mark.skipif(not HAS_TRACES, reason="no nvcc, or one without time traces, on PATH")
def test_a_build_leaves_traces_of_nvcc(family, cache, tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    family.edit("dtype: [bf16, fp16, f32]", "dtype: f32", "sm80.yaml")
    key, folder = f"{family.name}.sm80.f32-t256-n1024", tmp_path / "traces"
    options = ["--key", key, "--architecture", "80", "--profile", str(folder)]
    result = CliRunner().invoke(main, ["build", str(family.specs), *options])
    assert result.exit_code == 0, result.output
    trace = folder / f"{key}.kernel.json"
    ranked = json.loads(run(trace, "--json", "--top", 1000))["ranked"]
    names = {kind: [row["name"] for row in ranking["rows"]] for kind, ranking in ranked.items()}
    assert str(family.folder / "sm80.cuh") in names["header"]
    assert "kernelmint::launch" in names["template"]
    assert any(family.name in name for name in names["function"])
    assert {"cudafe++", "LibNVVM", "gcc (compiling)"} <= {*names["phase"]}


def test_a_compiler_without_traces_is_an_error_that_names_one_that_has(
    family, cache, tmp_path, monkeypatch
):
    monkeypatch.setenv("CXX", shutil.which("g++"))
    runtime.build(family.specs)  # with a trace, the cache's kernel does not do
    with pytest.raises(runtime.BuildError, match=r"GNU [\d.]+ writes no time trace: .*CXX=clang"):
        runtime.build(family.name, traces=tmp_path)
