"""From a compiler's output to one error, which begins with its author's file and line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from codegen.core import home
from codegen.core.words import counted, display_path

# g++ and clang++: file:line:column: error: text; nvcc: file(line): error: text, or error #20: text
_ERROR = re.compile(
    r"^(?P<file>[^\s:(][^:(]*)(?::(?P<place>\d+(?::\d+)?):|\((?P<line>\d+)\):)"
    r"\s*(?:fatal |catastrophic )?error(?: #\S+)?:\s*(?P<text>.*)$",
    re.MULTILINE,
)
# Errors for a header without the `launch` that its shard instantiates: g++, clang++, nvcc.
_NO_LAUNCH = re.compile(
    r"explicit instantiation of .*kernelmint::launch\(.*no definition available"
    r"|explicit instantiation of undefined function template 'launch'"
    r"|kernelmint::launch<.*no template definition was supplied"
    r'|namespace "kernelmint" has no member "(LaunchResult|launch)"'
    r"|undefined reference to `kernelmint::LaunchResult kernelmint::launch<"
    r"|undefined symbol: kernelmint::LaunchResult kernelmint::launch<"
)
# ... and for PyTorch's headers, some of which have a shim.
_NO_HEADER = re.compile(r"fatal error: (?P<name>(?:ATen|c10|torch)/\S+?):")
_UNDEFINED = re.compile(r"undefined (?:reference to|symbol:) (?P<name>.*)$", re.MULTILINE)
# ... and for a header without the kernel that the generated launch names: nvcc.
_NO_KERNEL = re.compile(r'namespace "(?P<space>[\w:]+)" has no member "(?P<kernel>\w+)"')


def first_error(
    output: str, header: Path, folders: Sequence[Path], excerpted: Sequence[str]
) -> str:
    """Returns the first error of an output, as `file:line:column: error: what`.

    An error in a file below `folders`, of specs and of foreign headers, or in a file of which
    definitions are `excerpted`, comes before others. If the kernel's `header` lacks a name that the
    generated code uses, the error says so.
    """
    shown = display_path(header)
    errors = list(_ERROR.finditer(output))
    own = [
        match
        for match in errors
        if any(map(Path(match["file"]).is_relative_to, folders))
        or match["file"].endswith(tuple(excerpted))
    ]
    if not own and _NO_LAUNCH.search(output):
        return (
            f"{shown}: it defines no `template <class Config, class Isa> LaunchResult "
            "launch(const void* args, const LaunchContext& context)` in namespace kernelmint, and "
            "its spec has no `launch:`"
        )
    if not own and (match := _NO_KERNEL.search(output)):
        return (
            f"{shown}: it defines no `{match['kernel']}` in namespace {match['space']}, "
            "which its spec names as the kernel"
        )
    for match in (*own, *errors):
        more = len(errors) - 1
        others = f" (and {counted(more, 'more error')})" if more else ""
        place = match["place"] or match["line"]
        error = f"{display_path(Path(match['file']))}:{place}: error: {match['text']}{others}"
        if header_of_torch := _NO_HEADER.search(output):
            name = header_of_torch["name"]
            has_shim = (home.INCLUDE / "shims/torch" / name).is_file()
            return f"{error}: " + (
                "`include: [{shims: torch}]` of the spec's `build:` has it"
                if has_shim
                else "Kernelmint has no shim of this header of PyTorch's"
            )
        return error
    if match := _UNDEFINED.search(output):
        return (
            f"{shown}: error: undefined: {match['name']}: name the library or the source "
            "that defines it in the spec's `build:`"
        )
    last = [line for line in output.splitlines() if line.strip()][-3:]
    return "\n".join(last) or "the compiler failed and said nothing"
