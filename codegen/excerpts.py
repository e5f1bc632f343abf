"""Definitions of a foreign C++ or CUDA file, without the rest of it: a file that holds host code,
bindings or explicit instantiations beside its kernels gives a header of those that are named.

A definition is taken word for word, in the file's order, within its namespaces and conditionals,
and `#line` names the file that it is of. All declarations of a name are taken: overloads,
specialisations, `#define` and `#undef`. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codegen import trust
from codegen.home import cache_folder
from codegen.staleness import read_regular
from codegen.words import did_you_mean

_TOKEN = re.compile(
    r"""
      (?P<comment> //(?:\\\r?\n|[^\n])* | /\*.*?\*/ )
    | (?P<raw> (?:u8|[uUL])?R"(?P<fence>[^\s()\\]{0,16})\(.*?\)(?P=fence)" )
    | (?P<text> (?:u8|[uUL])?(?: "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
    | (?P<directive> ^[ \t]*\#(?: \\\r?\n | /\*.*?\*/ | "(?:\\.|[^"\\\n])*" | [^\n] )* )
    | (?P<number> \.?\d(?:'?[\w.])* )
    | (?P<word> [^\W\d]\w* )
    | (?P<space> [^\S\n]+ | \n )
    | (?P<mark> ::|->|==|<=|>=|!=|&&|\|\|| . )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_DIRECTIVE = re.compile(r"\s*#\s*(\w*)(?:\s*|\\\r?\n)*(\w*)")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CLASSES = ("struct", "class", "union", "enum")
# What stands before `(` in a declaration and is not its name.
_NOT_NAMES = (
    *("alignas", "decltype", "explicit", "noexcept", "requires", "sizeof", "throw", "void"),
    *("__align__", "__attribute__", "__cluster_dims__", "__declspec", "__launch_bounds__"),
    *("__block_size__", "__maxnreg__"),
)

# What may end a type, where a parameter has no name.
_TYPES = ("bool", "char", "double", "float", "int", "long", "short", "signed", "unsigned")

_AFTER_CALLS = ("template", "namespace", "using", "typedef")


class ExcerptError(LookupError):
    """A file does not define what is asked for, or cannot be read; the message says which."""


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(eq=False)
class _Conditional:
    """An #if that is open, and the directives of it that came so far."""

    open: list[str]  # brackets before it
    scopes: list[str]
    branches: list[str] = field(default_factory=list)  # none: a guard against a second inclusion


@dataclass(frozen=True)
class _Declaration:
    """What a file says of a name: the text from start to end, and what is around it."""

    name: str
    start: int
    end: int
    namespaces: tuple[str, ...]  # each to its brace
    conditionals: tuple[tuple[str, ...], ...]
    is_split: bool  # it begins in one branch of a conditional, and ends in another


def excerpt(text: str, names: Sequence[str], file: str, as_device: bool = False) -> str:
    """A header of the declarations of `names` in a file's `text`; `file` is what it is called.

    `as_device`: `__global__` functions become `__device__` ones. Raises ExcerptError.
    """
    declarations = list(_Reader(text, file).declarations())
    known = sorted({declaration.name for declaration in declarations})
    for name in names:
        if name not in known:
            raise ExcerptError(f"{file} defines no '{name}'{did_you_mean(name, known)}")
    lines = ["#pragma once"]
    for found in declarations:
        if found.name not in names:
            continue
        line = text.count("\n", 0, found.start) + 1
        if found.is_split:
            raise ExcerptError(
                f"{file}:{line}: '{found.name}' begins in one branch of a conditional and ends in "
                "another, so it cannot be taken out"
            )
        body = text[found.start : found.end]
        if as_device:
            body = _as_device(body)
        lines += [directive for branches in found.conditionals for directive in branches]
        lines += found.namespaces
        lines += [f'#line {line} "{file}"', body]
        lines += ["}" for _ in found.namespaces]
        lines += ["#endif" for _ in found.conditionals]
    return "\n".join(lines) + "\n"


def folder(source: Path, entry: Mapping[str, str]) -> Path:
    """A folder with the header that an entry of a manifest's `include` asks for, of a file; it is
    written into the cache, read-only, by its content. Raises ExcerptError."""
    # Compilers name it in their messages, and a kernel's hash must be that of any machine.
    _, _, below = source.as_posix().rpartition(f"/{entry.get('sha256', '')}/")
    file = below if "archive" in entry else entry["path"]
    try:
        with source.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
            text = stream.read()
    except OSError as error:
        raise ExcerptError(f"{file}: {error.strerror}") from None
    names, as_device = entry["take"].split(","), entry["kernels"] == "device"
    of = f"{entry['archive']}, sha256 {entry['sha256']}" if "archive" in entry else "a folder"
    made = f"// {', '.join(names)} of {file} ({of})\n"
    made += excerpt(text, names, file, as_device)
    content = made.encode(errors="surrogateescape")
    cache, name = cache_folder(), hashlib.sha256(content).hexdigest()
    path = cache / "excerpts" / name / entry["excerpt"]
    try:
        kept = trust.folder(cache, "excerpts", name)
        if why := trust.fault(cache, "excerpts", name):
            raise ExcerptError(f"{file}: {why}")
        if not path.is_file() or read_regular(path) != content:
            number, partial = tempfile.mkstemp(dir=kept, prefix=".")
            with os.fdopen(number, "wb") as output:
                output.write(content)
            os.chmod(partial, 0o444)
            os.replace(partial, path)
    except OSError as error:
        raise ExcerptError(f"cannot write {path}: {error.strerror}") from None
    return kept


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        yield _Token("raw" if kind == "fence" else kind, match[0], match.start())


def _as_device(body: str) -> str:
    """Of kernels, functions that a kernel calls, without what is a kernel's alone."""
    found = []
    skipped: int | None = None  # brackets of __launch_bounds__ that are open, once it came
    for token in _tokens(body):
        if skipped is not None and (skipped or token.text == "(" or token.kind == "space"):
            skipped += {"(": 1, ")": -1}.get(token.text, 0)
            skipped = None if token.text == ")" and not skipped else skipped
        elif token.text == "__launch_bounds__":
            skipped = 0
        elif token.text != "__grid_constant__":
            found.append(token)
    texts = [token.text for token in found]
    for kernel, text in enumerate(texts):
        if text == "__global__":
            texts[kernel] = "__device__ __forceinline__"
            for place in _const_values(found, kernel):
                texts[place] = f"&{texts[place]}"
    return "".join(texts)


def _const_values(tokens: Sequence[_Token], kernel: int) -> Iterator[int]:
    """The places of the names of a kernel's parameters that are const values. As references they
    stay in the memory of the parameters of the kernel that calls; nvcc copies values, and compiles
    what reads the copy otherwise."""
    depth, parameter = 0, list[int]()  # within no further brackets
    for place in range(kernel + 1, len(tokens)):
        token = tokens[place]
        if token.kind in ("space", "comment", "directive"):
            continue
        if depth == 0:
            if token.text in ("{", ";"):
                return
            depth = int(token.text == "(")
            continue
        if depth == 1 and token.text in (",", ")"):
            if _is_const_value([tokens[i] for i in parameter]):
                yield parameter[-1]
            if token.text == ")":
                return
            parameter = []
            continue
        if depth == 1:
            parameter.append(place)
        depth += (token.text in "([{<") - (token.text in ")]}>")


def _is_const_value(parameter: Sequence[_Token]) -> bool:
    """Whether it says const, a type and a name."""
    texts = [token.text for token in parameter]
    return (
        len(texts) > 2
        and texts[0] == "const"
        and parameter[-1].kind == "word"
        and texts[-1] not in _TYPES
        and texts[-2] not in ("::", "typename", *_CLASSES)
        and not {"*", "&", "&&", "[", "=", "."} & set(texts)
    )


class _Reader:
    """Goes through a file, declaration by declaration, at the level of its namespaces."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.scopes: list[str] = []  # the namespaces that are open
        self.conditionals: list[_Conditional] = []
        self.open: list[str] = []  # brackets within the declaration
        self.tokens: list[_Token] = []  # the declaration's, without comments and directives
        self.begun: tuple[_Conditional, ...] = ()
        self.branches: tuple[tuple[str, ...], ...] = ()

    def declarations(self) -> Iterator[_Declaration]:
        """Those with a name, in order. Raises ExcerptError if brackets do not close."""
        tokens = [t for t in _tokens(self.text) if t.kind not in ("comment", "space")]
        after = [*tokens[1:], _Token("", "", 0)]
        for token, following in zip(tokens, after, strict=False):
            if token.kind == "directive":
                yield from self._directive(token, following)
            elif token.text == "}" and self.scopes and not self.open:
                self.scopes.pop()
                self._reset()
            else:
                if not self.tokens:
                    self.begun = tuple(self.conditionals)
                    self.branches = self._branches()
                self.tokens.append(token)
                self._bracket(token)
                if not self.open and self._ends(token, following):
                    yield from self._declaration(token.end)
                elif self.open == ["{"] and token.text == "{" and self._is_scope():
                    self.scopes.append(self.text[self.tokens[0].start : token.end])
                    self._reset()
        if self.open or self.scopes:
            raise ExcerptError(f"{self.file}: '{(self.scopes + self.open)[-1]}' is never closed")

    def _reset(self) -> None:
        self.tokens, self.open = [], []

    def _bracket(self, token: _Token) -> None:
        if token.kind == "mark" and token.text in _CLOSING:
            self.open.append(token.text)
        elif token.kind == "mark" and token.text in _CLOSING.values():
            if not self.open or _CLOSING[self.open[-1]] != token.text:
                line = self.text.count("\n", 0, token.start) + 1
                raise ExcerptError(f"{self.file}:{line}: '{token.text}' closes no bracket")
            self.open.pop()

    def _is_scope(self) -> bool:
        words = [token.text for token in self.tokens]
        named = words[1:] if words[0] == "inline" else words
        return named[0] == "namespace" or (
            words[0] == "extern" and self.tokens[1].kind == "text" and len(words) == 3
        )

    def _directive(self, token: _Token, following: _Token) -> Iterator[_Declaration]:
        what, name = _DIRECTIVE.match(token.text).groups()  # type: ignore[union-attr]
        if what in ("if", "ifdef", "ifndef"):
            opened = _Conditional([*self.open], [*self.scopes])
            guarded = _DIRECTIVE.match(following.text)
            is_guard = what == "ifndef" and guarded and guarded.groups() == ("define", name)
            if not is_guard:
                opened.branches.append(token.text)
            self.conditionals.append(opened)
        elif what in ("else", "elif", "elifdef", "elifndef") and self.conditionals:
            chain = self.conditionals[-1]
            self.open, self.scopes = [*chain.open], [*chain.scopes]  # as the first branch found it
            chain.branches.append(token.text)
        elif what == "endif" and self.conditionals:
            self.conditionals.pop()
        elif what in ("define", "undef") and name and not self.tokens:
            yield self._named(name, token.start, token.end, self._branches())

    def _branches(self) -> tuple[tuple[str, ...], ...]:
        found = (tuple(conditional.branches) for conditional in self.conditionals)
        return tuple(branches for branches in found if branches)

    def _named(
        self, name: str, start: int, end: int, conditionals: tuple[tuple[str, ...], ...],
        is_split: bool = False,
    ) -> _Declaration:  # fmt: skip
        return _Declaration(name, start, end, tuple(self.scopes), conditionals, is_split)

    def _ends(self, token: _Token, following: _Token) -> bool:
        """Whether a declaration ends with a token that no bracket is around."""
        if token.text == ";":
            return True
        if token.text == ")" and following.text in _AFTER_CALLS:
            return len(list(self._head())) == 3  # a macro's call
        if token.text != "}" or following.text in (",", "{", "catch"):
            return False
        head = list(self._head())
        return not _is_class(head) and _function(head) is not None

    def _declaration(self, end: int) -> Iterator[_Declaration]:
        words = [token.text for token in self.tokens if token.text != "extern"]
        is_instantiation = words[:1] == ["template"] and words[1:2] != ["<"]
        name = None if is_instantiation else _name(list(self._head()))
        if name is not None:
            is_split = self.begun != tuple(self.conditionals) or self.branches != self._branches()
            yield self._named(name, self.tokens[0].start, end, self.branches, is_split)
        self._reset()

    def _head(self) -> Iterator[_Token]:
        """The declaration's tokens that no bracket is around, without what `template <>` holds."""
        depth, angles, before = 0, 0, ""
        for token in self.tokens:
            if token.kind == "mark" and token.text in _CLOSING.values():
                depth -= 1
            if depth == 0 and token.text == "<" and (angles or before == "template"):
                angles += 1
            elif depth == 0 and token.text == ">" and angles:
                angles -= 1
            elif depth == 0 and not angles and token.text != "template":
                yield token
            if token.kind == "mark" and token.text in _CLOSING:
                depth += 1
            before = token.text


def _is_class(head: Sequence[_Token]) -> bool:
    words = [token.text for token in head]
    kinds = [i for i, word in enumerate(words) if word in (*_CLASSES, "typedef", "using")]
    return bool(kinds) and _function(head[kinds[0] :]) is None


def _function(head: Sequence[_Token]) -> str | None:
    """The name of the function that a declaration declares; None if it declares none."""
    found, operator = None, -1
    for i, token in enumerate(head):
        word, before = token.text, head[_before_angles(head, i)]
        if word == "operator":
            operator = i
        elif word == "(" and operator >= 0:
            return "operator" + ("".join(t.text for t in head[operator + 1 : i]) or "()")
        elif operator >= 0:
            continue
        elif word == "(" and before.kind == "word" and before.text not in _NOT_NAMES:
            found = before.text
        elif word in ("=", "->", ":"):
            break
    return found


def _before_angles(head: Sequence[_Token], i: int) -> int:
    """The place of the token before another one, and before the <…> that may be between."""
    angles, i = 0, i - 1
    while i > 0 and (angles or head[i].text == ">"):
        angles += {">": 1, "<": -1}.get(head[i].text, 0)
        i -= 1
    return i


def _name(head: Sequence[_Token]) -> str | None:
    """The name that a declaration declares; None if it has none."""
    words = [token.text for token in head]
    if "namespace" in words[:2]:  # an alias, or `using namespace`
        return None
    if not _is_class(head):
        if (function := _function(head)) is not None:
            return function
        ends: Sequence[str] = ("=", "[", "{", ";")
    elif "typedef" in words:
        ends = (";",)
    elif "using" in words:
        ends = ("=", ";")
    else:
        words = words[next(i for i, word in enumerate(words) if word in _CLASSES) :]
        head = head[-len(words) :]
        ends = ("{", ":", "<", "final", ";")
    end = next((i for i, word in enumerate(words) if word in ends), len(words))
    named = [token.text for token in head[:end] if token.kind == "word"]
    return named[-1] if named else None
