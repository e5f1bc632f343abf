"""Definitions of a foreign file, without the rest of it: word for word, and only whole ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.sources import build_paths
from codegen.sources.excerpts import ExcerptError, excerpt

ROOT = Path(__file__).resolve().parents[2]

INCLUDE = f"-I{ROOT / 'runtime/include'}"
FILE = r"""#include <torch/extension.h>  // which nobody has
#ifndef SAMPLE_CU
#define SAMPLE_CU
#define THREADS 128
#define BLOCKS(n) \
  (((n) + THREADS - 1) / THREADS)  // a "quote
namespace sample { namespace detail {
enum class Kind : int { kSum, kMax };
template <class T, class = std::enable_if_t<(sizeof(T) > 1)>>
struct alignas(16) Pair : Base<T> {
  T first{}, second{};  /* } not the end */
};
template <> struct Pair<char, void> { char only = '}'; };
constexpr float kScale = 0.5f, kTable[2] = {1, 2};
using Real = float;
typedef unsigned long long Wide;
}  // namespace detail
static inline Real half(Real x) { return x * detail::kScale; }
Real half(int x) noexcept { return x / 2.f; }
Pair operator+(Pair a, Pair b) { return a; }
#ifdef USE_ROCM
#define SHUFFLE(x) __shfl(x)
#else
#define SHUFFLE(x) \
  __shfl_sync(~0u, x)
#endif
template <class T>
__global__ void __launch_bounds__(THREADS, 1) scale(const __grid_constant__ Params p, T* y) {
  const char* text = R"(}} " )" "\"}";
#if THREADS > 64
  if (p.n) {
#else
  if (!p.n) {
#endif
    y[0] = sample::half(y[0]);
  }
}
DECLARE(scale)
template <class T> void launch(T* y) { scale<T><<<BLOCKS(1), THREADS>>>(Params{1}, y); }
template void launch<float>(float*);
template <> void launch<int>(int*) {}
#ifdef ODD
void odd(int x) {
#else
void odd() {
#endif
}
}  // namespace sample
extern "C" {
int plain(void) { return 1'000; }
}
PYBIND11_MODULE(sample, m) { m.def("scale", &sample::launch<float>); }
#endif
"""


def taken(*names: str, as_device: bool = False) -> str:
    return excerpt(FILE, names, "upstream/sample.cu", as_device)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("BLOCKS", "#define BLOCKS", "THREADS - 1) / THREADS)  // a \"quote\n"),
        ("Kind", "enum class Kind", "};\n"),
        ("kScale", "constexpr float kScale", "{1, 2};\n"),
        ("Real", "using Real", "float;\n"),
        ("Wide", "typedef", "Wide;\n"),
        ("operator+", "Pair operator+", "return a; }\n"),
        ("scale", "template <class T>\n__global__", "  }\n}\n"),
        ("plain", "int plain(void)", "1'000; }\n"),
    ],
)  # fmt: skip
def test_a_definition_is_taken_whole_and_word_for_word(name, first, last) -> None:
    text = taken(name)
    line, body = text.partition("#line ")[2].split("\n", 1)
    number, file = line.split(" ", 1)
    assert file == '"upstream/sample.cu"'
    body = body[: body.rindex(last) + len(last)].replace("KERNELMINT_INLINE ", "")
    assert body.startswith(first)
    assert body.rstrip("\n") in FILE
    assert FILE.splitlines()[int(number) - 1] == body.splitlines()[0]


CONSTRUCTS = r"""#include "macros.h"
namespace cg = cooperative_groups;
using namespace nvcuda::wmma;
using std::vector;
namespace {
int hidden() { return 1; }
}
[[maybe_unused]] static constexpr int kRows = 16;
typedef unsigned char (*Pick)(float, int);
__device__ float (*picks[2])(float) = {first, second};
int *begin, end = 3, table[2];
std::map<int, float> sizes;
template <class T>
LAUNCH_BOUNDS(128) __global__ void bounded(T* x) {}
template <class L>
struct Converter<L, std::enable_if_t<is_same<L>()>> { int n; };
#define MAKE(type) \
  template __global__ void quantise<type>(type*);
template <class T>
__global__ void quantise(T* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = 0;
}
MAKE(half)
MAKE(float)  // all of them

MAKE_ANY(int)
MAKE_OTHER(int)
template __global__ void dequantise<int>(int*);
template <class T> __global__ void dequantise(T* x) {}
MAKE_LAST(int)

void plain() {}
template <> int of_header<int>(int x) { return x; }
MAKE_AT_END(1)
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cg", ["namespace cg = cooperative_groups;"]),
        ("wmma", ["using namespace nvcuda::wmma;"]),
        ("vector", ["using std::vector;"]),
        ("hidden", ["KERNELMINT_INLINE int hidden() { return 1; }"]),
        ("kRows", ["[[maybe_unused]] static constexpr int kRows = 16;"]),
        ("Pick", ["typedef unsigned char (*Pick)(float, int);"]),
        ("picks", ["static __device__ float (*picks[2])(float) = {first, second};"]),
        ("begin", ["static int *begin, end = 3, table[2];"]),
        ("table", ["static int *begin, end = 3, table[2];"]),
        ("sizes", ["static std::map<int, float> sizes;"]),
        ("bounded", ["template <class T>", "LAUNCH_BOUNDS(128) __global__ void bounded(T* x) {}"]),
        ("Converter", ["template <class L>",
                       "struct Converter<L, std::enable_if_t<is_same<L>()>> { int n; };"]),
        ("quantise", ["template <class T>", "__global__ void quantise(T* x) {", "#pragma unroll",
                      "  for (int i = 0; i < 4; ++i) x[i] = 0;", "}"]),
        ("MAKE_OTHER", ["MAKE_OTHER(int)"]),
        ("dequantise", ["template <class T> __global__ void dequantise(T* x) {}"]),
        ("plain", ["KERNELMINT_INLINE void plain() {}"]),
        ("MAKE_AT_END", ["MAKE_AT_END(1)"]),
    ],
)  # fmt: skip
def test_nothing_but_the_definition_is_taken(name, expected) -> None:
    text = excerpt(CONSTRUCTS, [name], "x.cu")
    lines = text.splitlines()
    begin, end = (lines.index(f"KERNELMINT_ISA_{which}") for which in ("BEGIN", "END"))
    assert lines[begin + 2 : end] == expected
    assert lines.count("namespace {") == (name == "hidden")


def test_a_specialisation_of_another_headers_template_stays_in_its_namespace() -> None:
    lines = excerpt(CONSTRUCTS, ["of_header"], "x.cu").splitlines()
    assert lines[3:] == ["template <> KERNELMINT_INLINE int of_header<int>(int x) { return x; }"]


SHARED = """
extern "C" {
extern int of_library(int);
int plain() { return 1; }
}
extern "C" int counted() { return of_library(1); }
[[nodiscard]] int forward(int x);
template <class T> T identity(T x) { return x; }
template <> int identity(int x) { return x + 1; }
[[nodiscard]] int forward(int x) { return identity(x) + plain() + counted(); }
struct Of { int value() const; static int count; };
int Of::value() const { return forward(1); }
int total, *pointer = &total;
template <> struct std::hash<Of> { size_t operator()(Of) const { return 1; } };
"""


def test_several_files_of_a_library_hold_what_is_taken(tmp_path) -> None:
    """Each instruction set of the CPU has its own."""
    names = ["of_library", "plain", "counted", "identity", "forward", "Of", "total", "hash"]
    (tmp_path / "x.h").write_text(excerpt(SHARED, [*names, "value"], "x.cpp"))
    (tmp_path / "a.cpp").write_text(
        '#include <functional>\n#include "x.h"\n'
        "int NAME() { return ++total + Of().value() + int(std::hash<Of>()(Of())); }\n"
    )
    objects = []
    for name, isa in (("one", "baseline"), ("two", "avx2")):
        objects.append(str(tmp_path / f"{name}.o"))
        options = [f"-DKERNELMINT_ISA={isa}", f"-DNAME={name}", "-std=c++20", INCLUDE, "-O0"]
        command = ["c++", *options, "-fPIC", "-c", str(tmp_path / "a.cpp"), "-o", objects[-1]]
        subprocess.run(command, check=True)
    library = str(tmp_path / "a.so")
    subprocess.run(["c++", "-shared", *objects, "-o", library], check=True)
    done = subprocess.run(["nm", "-C", library], capture_output=True, text=True, check=True)
    symbols = {line.split(" ", 2)[2] for line in done.stdout.splitlines() if " W " in line}
    for isa in ("baseline", "avx2"):
        mine = {f"{isa}::plain()", f"{isa}::counted()", f"{isa}::forward(int)"}
        assert {*mine, f"{isa}::Of::value() const"} <= symbols
    assert " U of_library" in done.stdout


def test_all_of_a_name_in_the_files_order() -> None:
    text = taken("half", "Pair", "launch")
    at = [
        text.index(part)
        for part in ("struct alignas(16)", "struct Pair<char", "half(Real", "half(int")
    ]
    assert at == sorted(at)
    assert "launch<int>(int*)" in text
    assert "template void launch<float>" not in text  # no explicit instantiation
    assert text.count("#line") == 6


def test_namespaces_and_conditionals_are_kept_and_a_guard_is_not() -> None:
    lines = [line for line in taken("Kind").splitlines() if not line.startswith("#line")]
    assert lines[2:] == ["namespace sample {", "namespace detail {", "KERNELMINT_ISA_BEGIN",
                         "enum class Kind : int { kSum, kMax };", "KERNELMINT_ISA_END",
                         "}", "}"]  # fmt: skip
    assert taken("SHUFFLE").count("#ifdef USE_ROCM") == 2
    assert "SAMPLE_CU" not in taken("THREADS", "plain")


def test_a_kernel_as_a_device_function() -> None:
    text = taken("scale", as_device=True)
    assert "__device__ __forceinline__ void  scale(const  Params &p, T* y) {" in text


def test_const_values_of_a_device_function_are_references_to_the_kernels() -> None:
    parameters = (
        "const a::B<T*, int> b /* , */, const T *p, T *const q, const int n, C c, const D &d, "
        "const unsigned int, const a::E, const F f = F(1, 2), const typename G::type g"
    )
    text = f"template <int kN = (2)> __global__ void k({parameters}) {{ const int i = f(n, 1); }}"
    want = parameters.replace("> b", "> &b").replace("int n", "int &n").replace("type g", "type &g")
    assert want in excerpt(text, ["k"], "k.cu", as_device=True)
    assert "const int i = f(n, 1);" in excerpt(text, ["k"], "k.cu", as_device=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scal", r"upstream/sample\.cu defines no 'scal' \(did you mean 'scale'\?\)"),
        ("torch", r"defines no 'torch'"),
        ("odd", r"upstream/sample\.cu:43: 'odd' begins in one branch of a conditional and ends"),
    ],
)
def test_what_cannot_be_taken_is_named(name, message) -> None:
    with pytest.raises(ExcerptError, match=message):
        taken(name)


@pytest.mark.parametrize("text", ["void f() { (", "void f() { ) }", "namespace a {"])
def test_a_file_whose_brackets_do_not_close(text) -> None:
    with pytest.raises(ExcerptError, match=r"x\.cu.*('\(' is never|closes no|'namespace a \{' is)"):
        excerpt(text, ["f"], "x.cu")


SIZES = {
    "pack": ("#pragma pack(push, 1)\nstruct S { char a; int b; };\n#pragma pack(pop)", 5),
    "pack of another": ("#pragma pack(2)\nstruct T { int a; };\n#pragma pack()\n"
                        "struct S { char a; int b; };", 8),
    "operator": ('_Pragma("pack(push, 1)")\nstruct S { char a; int b; };\n_Pragma("pack(pop)")', 5),
    "operator of another": ('_Pragma("pack(push, 1)") struct T { int a; };\n'
                            "struct S { char a; int b; };", 5),
    "condition": ("#if 0\n#pragma pack(2)\n#else\n#pragma pack(1)\n#endif\n"
                  "namespace n {\nstruct T {};\n}\nstruct S { char a; int b; };", 5),
    "within": ("struct S {\n#pragma pack(push, 1)\n  struct { char a; int b; } c;\n"
               "#pragma pack(pop)\n  struct { char a; int b; } d;\n};", 16),
    "within another": ("inline void f() {\n#pragma pack(1)\n}\nstruct S { char a; int b; };", 5),
    "operator within another": ("struct T {\n  int a;\n  _Pragma(\"pack(1)\")\n};\n"
                                "struct S { char a; int b; };", 5),
    "comment": ("# /* of\n*/ pragma /* 1 */ pack(1)\nstruct S { char a; int b; };", 5),
    "line in two": ("#pra\\\ngma pack(1)\nstruct S { char a; int b; };", 5),
    "macro": ("#define N 1\n#pragma push_macro(\"N\")\n#undef N\n#define N 9\n"
              "struct T { char a[N]; };\n#pragma pop_macro(\"N\")\nstruct S { char a[N]; };", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_a_pragma_holds_for_what_is_taken_as_in_the_file(tmp_path, name) -> None:
    text, size = SIZES[name]
    header = excerpt(text, ["S", "N"] if name == "macro" else ["S"], "x.cu")
    for source in (text, header):
        (tmp_path / "a.cpp").write_text(f"{source}\nstatic_assert(sizeof(S) == {size});\n")
        command = ["c++", "-std=c++20", "-fsyntax-only", INCLUDE, str(tmp_path / "a.cpp")]
        subprocess.run(command, check=True)


@pytest.mark.parametrize(
    "text",
    ["a >", "a > ()", "a <", "template <", "f(", "{}", "f(){},", "class {}", "operator ", 'R"x(',
     "/* ", "#/* ", '"', "\\\n", "#if 1\n", "#if 0\nstruct a;\n", "namespace a { ", "__global__ ",
     "#pragma pack(1)\n", "_Pragma("],
)  # fmt: skip
def test_a_long_file_is_read_in_a_time_that_grows_with_its_length(text) -> None:
    """Twice the text makes no more than some three times the steps."""

    def steps(length: int) -> int:
        count = 0

        def note(*_: object) -> object:
            nonlocal count
            count += 1
            return note

        sys.settrace(note)
        try:
            with contextlib.suppress(ExcerptError):
                excerpt(text * (length // len(text)) + "\nvoid f() {}\n", ["f"], "x.cu", True)
        finally:
            sys.settrace(None)
        return count

    assert steps(8000) < 3 * steps(4000) + 1000


def test_the_headers_folder_is_found_by_entry_and_by_cmakes_text(tmp_path, monkeypatch) -> None:
    """It is written once, read-only, and is the same on every machine."""
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "up").mkdir()
    (tmp_path / "up/a.cu").write_text("int one() { return 1; }\nint main() {}\n", newline="\r\n")
    entry = {"specs": "specs", "path": "../up/a.cu", "excerpt": "one.h", "take": "one",
             "kernels": "global"}  # fmt: skip
    found = build_paths.find(entry, {"specs": tmp_path / "specs"})
    header = found / "one.h"
    assert header.read_bytes().count(b"\r\n") == 0
    assert '#line 1 "../up/a.cu"\nKERNELMINT_INLINE int one() { return 1; }\n' in header.read_text()
    assert str(tmp_path) not in header.read_text()
    assert not os.access(header, os.W_OK) or os.geteuid() == 0
    again = build_paths.find({**entry, "excerpt": "two.h"}, {"specs": tmp_path / "specs"})
    assert again != found  # a folder holds one header: builds list what is in it
    text = build_paths.as_text(entry, str(tmp_path / "up/a.cu"))
    assert text == f"excerpt:one.h:global:one:{tmp_path}/up/a.cu"
    command = [sys.executable, build_paths.__file__, text]
    asked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (
        (Path(asked) / "one.h")
        .read_text()
        .endswith("int one() { return 1; }\nKERNELMINT_ISA_END\n")
    )
    with pytest.raises(build_paths.PathNotFoundError, match=r"\.\./up/a\.cu defines no 'two'"):
        build_paths.find({**entry, "take": "two"}, {"specs": tmp_path / "specs"})


def test_a_header_of_the_cache_that_others_wrote_is_not_compiled(tmp_path, monkeypatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("KERNELMINT_CACHE_DIR", str(cache))
    (tmp_path / "a.cu").write_text("int one() { return 1; }\n")
    entry = {"specs": "specs", "path": "../a.cu", "excerpt": "one.h", "take": "one",
             "kernels": "global"}  # fmt: skip
    header = build_paths.find(entry, {"specs": tmp_path / "specs"}) / "one.h"
    text = header.read_text()
    header.chmod(0o644)
    header.write_text("int one() { return 100; }\n")
    assert build_paths.find(entry, {"specs": tmp_path / "specs"}) == header.parent
    assert header.read_text() == text
    for path in (cache, cache / "excerpts", header.parent, header):
        path.chmod(path.stat().st_mode | 0o020)
        with pytest.raises(build_paths.PathNotFoundError, match=rf"{path} may be written by its"):
            build_paths.find(entry, {"specs": tmp_path / "specs"})
        path.chmod(path.stat().st_mode & ~0o020)


def test_a_compiler_names_the_original_line(tmp_path) -> None:
    compiler = shutil.which("c++")
    assert compiler
    text = excerpt("\n\nint f() {\n  return wrong;\n}\n", ["f"], "upstream/sample.cu")
    (tmp_path / "f.h").write_text(text)
    (tmp_path / "f.cpp").write_text('#include "f.h"\n')
    command = [compiler, "-fsyntax-only", INCLUDE, str(tmp_path / "f.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "upstream/sample.cu:4:" in done.stderr


def test_headers_that_people_wrote_are_read() -> None:
    headers = sorted(
        path for path in (ROOT / "runtime/include").rglob("*") if path.suffix in (".h", ".cuh")
    )
    assert len(headers) > 20
    for path in headers:
        with pytest.raises(ExcerptError, match="defines no 'no such name'"):
            excerpt(path.read_text(), ["no such name"], path.name)
