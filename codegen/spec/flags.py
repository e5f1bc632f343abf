"""Flags of compilers in a spec: checks that they are a command line's, and not another key's."""

from __future__ import annotations

import re
import shlex

from codegen.spec.source import Document

# Characters that CMake interprets: lists, variables.
_UNSPEAKABLE = re.compile(r"[;$\[\]\x00-\x1f]")
# Options that another key sets, or that the build chooses.
_ELSEWHERE = (
    (("-I", "-isystem", "--include-path", "--system-include"), "folders go in `include`"),
    (("-L", "-l", "--library"), "libraries go in `libraries`"),
    (("-M",), "the build asks for a file's dependencies itself"),
    (
        ("-arch", "--gpu-architecture", "-code", "--gpu-code", "-gencode", "--generate-code"),
        "architectures are chosen when building, with CMAKE_CUDA_ARCHITECTURES",
    ),
)


def check_text(document: Document, text: str, *path: str | int) -> None:
    """Reports a text that CMake cannot spell."""
    if wrong := _UNSPEAKABLE.search(text):
        document.report(f"CMake cannot spell the character {wrong[0]!a} here", *path)


def load_flag(document: Document, text: str, *path: str | int) -> str:
    """Returns an option of a compiler with its values, each quoted for a command line if need
    be."""
    check_text(document, text, *path)
    try:
        words = shlex.split(text)
    except ValueError as error:
        document.report(f"not words of a command line: {error}", *path)
        return text
    if not words or not words[0].startswith("-"):
        document.report(
            "an option of the compiler begins with '-'; its value comes after it, as in "
            '"-Xptxas -O3"',
            *path,
        )
        return text
    for options, message in _ELSEWHERE:
        if any(_is_option(words[0], option) for option in options):
            document.report(message, *path)
    return shlex.join(words)


def _is_option(word: str, option: str) -> bool:
    """Returns whether a command line's word is this option; its value may follow within the
    word."""
    if option.startswith("--") or len(option) > 2:
        return word.partition("=")[0] == option
    return word.startswith(option)
