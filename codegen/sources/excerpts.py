"""Definitions of a foreign C++ or CUDA file, without the rest of it: a file that holds host code,
bindings or explicit instantiations beside its kernels gives a header of the definitions that are
named.

A definition is taken word for word, in the file's order, within its namespaces and conditionals,
and `#line` names the file that it is of. All declarations of a name are taken: overloads,
specialisations, `#define` and `#undef`; and every `#pragma` that may hold for later code, such as
`pack`. Several files of a library may include the header: a function that is not a template becomes
inline, a plain kernel or variable static, and on the CPU each instruction set has its own of all
(runtime/include/excerpt.h). Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from codegen.core import trust
from codegen.core.home import cache_folder
from codegen.core.staleness import read_regular
from codegen.core.words import did_you_mean

_TOKEN = re.compile(
    r"""
      (?P<comment> //(?:\\\r?\n|[^\n])* | /\*.*?(?:\*/|\Z) )
    | (?P<raw> (?:u8|[uUL])?R"(?P<fence>[^\s()\\]{0,16})\(.*?(?:\)(?P=fence)"|\Z) )
    | (?P<text> (?:u8|[uUL])?(?: "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' ) )
    | (?P<directive> ^[ \t]*\#(?: \\\r?\n | /\*.*?(?:\*/|\Z) | "(?:\\.|[^"\\\n])*" | [^\n] )* )
    | (?P<number> \.?\d(?:'?[\w.])* )
    | (?P<word> [^\W\d]\w* )
    | (?P<space> [^\S\n]+ | \n )
    | (?P<mark> ::|->|==|<=|>=|!=|&&|\|\|| . )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_DIRECTIVE = re.compile(r"\s*#\s*(\w*)\s*(\w*)")
_SPLICE = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL)
_PRAGMA_NAME = re.compile(r'["(]\s*(\w+)')  # in the text of a _Pragma
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CLASSES = ("struct", "class", "union", "enum")
# Words before `(` in a declaration that are not its name.
_NOT_NAMES = (
    *("alignas", "decltype", "explicit", "noexcept", "requires", "sizeof", "throw", "void"),
    *("__align__", "__attribute__", "__cluster_dims__", "__declspec", "__launch_bounds__"),
    *("__block_size__", "__maxnreg__"),
)

# Words that may end a type, where a parameter has no name.
_TYPES = ("bool", "char", "double", "float", "int", "long", "short", "signed", "unsigned")

_AFTER_CALLS = ("template", "namespace", "using", "typedef", "}", "")  # "": the file's end
_EMPTY_LINE = re.compile(r"\n[ \t]*\r?\n")
_SPACES = ("__constant__", "__device__", "__global__", "__host__", "__managed__")
# Words of declarations that several files of a library may hold, or that define nothing.
_SHARED = (
    *("inline", "__inline", "__inline__", "__forceinline__", "static", "constexpr", "consteval"),
    *("extern", "friend", "namespace", "typedef", "using"),
)
_PRAGMA = "#pragma"  # in place of a declaration's name
# Pragmas that hold beyond the function or class in which they stand.
_LASTING = ("pack", "push_macro", "pop_macro", "GCC", "clang")
_MOST_CONDITIONALS = 256  # within each other, as the C++ standard asks of compilers ([implimits])


class ExcerptError(LookupError):
    """A file does not define a requested name, or cannot be read; the message says which."""


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
    """An open #if and its directives so far."""

    open: list[str]  # brackets before it
    scopes: list[str]
    branches: list[str] = field(default_factory=list)  # absent: a guard against a second inclusion


@dataclass(frozen=True)
class _Declaration:
    """A declaration of names, or a pragma: the text from start to end, and what surrounds it."""

    names: tuple[str, ...]
    start: int
    end: int
    namespaces: tuple[str, ...]  # each to its brace
    conditionals: tuple[tuple[str, ...], ...]
    is_split: bool = False  # it begins in one branch of a conditional, and ends in another
    is_code: bool = False  # neither a macro nor a pragma
    is_definition: bool = False
    is_specialisation: bool = False
    mark: tuple[int, str] | None = None  # where a word goes that lets several files hold it
    linkage: tuple[int, int] | None = None  # the place of `extern "C"` of a definition


def excerpt(text: str, names: Sequence[str], file: str, as_device: bool = False) -> str:
    """Returns a header of the declarations of `names` in a file's `text`; `file` is the file's name
    in messages.

    `as_device`: `__global__` functions become `__device__` ones. Raises ExcerptError.
    """
    declarations = sorted(_Reader(text, file).declarations(), key=attrgetter("start"))
    declared = sorted({name for part in declarations for name in part.names} - {_PRAGMA})
    for name in names:
        if name not in declared:
            raise ExcerptError(f"{file} defines no '{name}'{did_you_mean(name, declared)}")
    # A specialisation belongs into the namespace of its template, a declaration of its definition.
    own = {
        name
        for part in declarations
        if part.is_definition and not part.is_specialisation
        for name in part.names
    }
    lines, end = ["#pragma once", '#include "excerpt.h"'], 0
    for part in declarations:
        is_lasting = _PRAGMA in part.names and part.start >= end  # else within a definition
        if is_lasting or set(part.names) & set(names):
            end = part.end
            lines += _lines(text, part, own.issuperset(part.names), file, as_device)
    return "\n".join(lines) + "\n"


def _lines(
    text: str, part: _Declaration, is_own: bool, file: str, as_device: bool
) -> Iterator[str]:
    """Yields the lines of a declaration and its surroundings. `is_own`: the file defines the
    names."""
    line = text.count("\n", 0, part.start) + 1
    if part.is_split:
        raise ExcerptError(
            f"{file}:{line}: '{part.names[0]}' begins in one branch of a conditional and ends "
            "in another, so it cannot be taken out"
        )
    scopes = [
        scope
        for scope in part.namespaces
        if not (part.is_definition and scope.startswith("extern"))
    ]
    is_isas = part.is_code and is_own
    body = _shared(text, part) if part.is_definition or is_isas else text[part.start : part.end]
    for branches in part.conditionals:
        yield from branches
    if _PRAGMA in part.names:
        yield body
    else:
        yield from [*scopes, *(["KERNELMINT_ISA_BEGIN"] if is_isas else [])]
        yield f'#line {line} "{file}"'
        yield _as_device(body) if as_device else body
        yield from [*(["KERNELMINT_ISA_END"] if is_isas else []), *("}" for _ in scopes)]
    yield from ("#endif" for _ in part.conditionals)


def folder(source: Path, entry: Mapping[str, str]) -> Path:
    """Returns a folder with the header that an entry of a manifest's `include` takes from a file;
    it is written into the cache, read-only, by its name and content. Raises ExcerptError."""
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
    header = f"// {', '.join(names)} of {file} ({of})\n"
    header += excerpt(text, names, file, as_device)
    content = header.encode(errors="surrogateescape")
    # A folder holds one header, so that none comes into a folder that a build has listed.
    named = f"{entry['excerpt']}\n".encode() + content
    cache, name = cache_folder(), hashlib.sha256(named).hexdigest()
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


def _shared(text: str, part: _Declaration) -> str:
    """Returns a declaration's text, so that several files of a library may hold it."""
    edits = [(*part.linkage, "")] if part.linkage else []
    if part.mark:
        place, word = part.mark
        edits.append((place, place, f"{word} "))
    body, done = "", part.start
    for start, end, word in edits:
        body, done = f"{body}{text[done:start]}{word}", end
    return body + text[done : part.end]


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        yield _Token("raw" if kind == "fence" else kind, match[0], match.start())


def _words(token: _Token) -> tuple[str, str]:
    """Returns a directive's kind and the name after it, empty without a name."""
    match = _DIRECTIVE.match(_one_line(token))
    return (match[1], match[2]) if match else ("", "")


def _one_line(directive: _Token) -> str:
    """Returns a directive without comments."""
    return _COMMENT.sub(" ", _SPLICE.sub("", directive.text))


def _as_device(body: str) -> str:
    """Turns kernels into functions that a kernel calls, without the attributes that only kernels
    have."""
    tokens = []
    skipped: int | None = None  # brackets of __launch_bounds__ that are open, once it came
    for token in _tokens(body):
        if skipped is not None and (skipped or token.text == "(" or token.kind == "space"):
            skipped += {"(": 1, ")": -1}.get(token.text, 0)
            skipped = None if token.text == ")" and not skipped else skipped
        elif token.text == "__launch_bounds__":
            skipped = 0
        elif token.text != "__grid_constant__":
            tokens.append(token)
    texts = [token.text for token in tokens]
    for kernel, text in enumerate(texts):
        if text == "__global__":
            texts[kernel] = "__device__ __forceinline__"
            for place in _const_values(tokens, kernel):
                texts[place] = f"&{texts[place]}"
    return "".join(texts)


def _const_values(tokens: Sequence[_Token], kernel: int) -> Iterator[int]:
    """Returns the places of the names of a kernel's parameters that are const values. As references
    they stay in the memory of the parameters of the kernel that calls; nvcc copies values, and
    compiles the code that reads the copy differently."""
    depth, parameter = 0, list[int]()  # within no further brackets
    for place in range(kernel + 1, len(tokens)):
        token = tokens[place]
        if token.kind in ("space", "comment", "directive"):
            continue
        if depth == 0:
            if token.text in ("{", ";", "__global__"):
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
    """Returns whether a parameter is const, a type and a name."""
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
    """A walk through a file, declaration by declaration, at the level of its namespaces."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.scopes: list[str] = []  # the namespaces that are open
        self.conditionals: list[_Conditional] = []
        self.open: list[str] = []  # brackets within the declaration
        self.tokens: list[_Token] = []  # the declaration's, without comments and directives
        self.head = _Head()
        self.begun: tuple[_Conditional, ...] = ()
        self.branches: tuple[tuple[str, ...], ...] = ()
        self.declaring: set[str] = set()  # macros whose calls are whole declarations

    def declarations(self) -> Iterator[_Declaration]:
        """Yields the declarations with a name, in order. Raises ExcerptError if brackets do not
        close."""
        tokens = [t for t in _tokens(self.text) if t.kind not in ("comment", "space")]
        following = _Token("", "", 0)
        after = [following]  # for each token the next one, directives left out
        for token in reversed(tokens[1:]):
            following = following if token.kind == "directive" else token
            after.append(following)
        for i, (token, following) in enumerate(zip(tokens, reversed(after), strict=False)):
            if token.kind == "directive":
                yield from self._directive(token, tokens[i + 1] if i + 1 < len(tokens) else token)
            elif token.text == "}" and self.scopes and not self.open:
                self.scopes.pop()
                self._reset()
            else:
                if not self.tokens:
                    self.begun = tuple(self.conditionals)
                    self.branches = self._branches()
                self.tokens.append(token)
                self.head.add(token)
                self._bracket(token)
                yield from self._pragma_within(token)
                if not self.open and self._ends(token, following):
                    yield from self._declaration(token)
                elif self.open == ["{"] and token.text == "{" and self._is_scope():
                    self.scopes.append(self.text[self.tokens[0].start : token.end])
                    self._reset()
        if self.open or self.scopes:
            raise ExcerptError(f"{self.file}: '{(self.scopes + self.open)[-1]}' is never closed")

    def _reset(self) -> None:
        self.tokens, self.open, self.head = [], [], _Head()

    def _bracket(self, token: _Token) -> None:
        if token.kind == "mark" and token.text in _CLOSING:
            self.open.append(token.text)
        elif token.kind == "mark" and token.text in _CLOSING.values():
            if not self.open or _CLOSING[self.open[-1]] != token.text:
                line = self.text.count("\n", 0, token.start) + 1
                raise ExcerptError(f"{self.file}:{line}: '{token.text}' closes no bracket")
            self.open.pop()

    def _is_scope(self) -> bool:
        words = [token.text for token in self.tokens[:4]]
        named = words[1:] if words[0] == "inline" else words
        return named[0] == "namespace" or (
            words[0] == "extern" and self.tokens[1].kind == "text" and len(words) == 3
        )

    def _directive(self, token: _Token, following: _Token) -> Iterator[_Declaration]:
        what, name = _words(token)
        if what in ("define", "undef") and self.tokens and self.head.calls and not self.open:
            yield from self._declaration(self.tokens[-1])
        if what in ("if", "ifdef", "ifndef"):
            opened = _Conditional([*self.open], [*self.scopes])
            is_guard = what == "ifndef" and _words(following) == ("define", name)
            if not is_guard:
                opened.branches.append(token.text)
            self.conditionals.append(opened)
            if len(self.conditionals) > _MOST_CONDITIONALS:
                raise ExcerptError(
                    f"{self.file}: more than {_MOST_CONDITIONALS} conditionals within each other"
                )
        elif what in ("else", "elif", "elifdef", "elifndef") and self.conditionals:
            chain = self.conditionals[-1]
            self.open, self.scopes = [*chain.open], [*chain.scopes]  # before the first branch
            chain.branches.append(token.text)
        elif what == "endif" and self.conditionals:
            self.conditionals.pop()
        elif what in ("define", "undef") and name and not self.tokens:
            if _one_line(token).rstrip().endswith((";", "}")):
                self.declaring.add(name)
            yield self._named(name, token.start, token.end, self._branches())
        elif what == "pragma" and name != "once" and (not self.tokens or name in _LASTING):
            yield self._named(_PRAGMA, token.start, token.end, self._branches())

    def _pragma_within(self, token: _Token) -> Iterator[_Declaration]:
        """Takes a _Pragma that ends here, if it lasts beyond the declaration around it."""
        if token.text != ")" or len(self.tokens) < 5:
            return
        word, bracket, text = self.tokens[-4:-1]
        if (word.text, bracket.text) != ("_Pragma", "("):
            return
        name = _PRAGMA_NAME.search(text.text)
        if name and name[1] in _LASTING:
            yield self._named(_PRAGMA, word.start, token.end, self._branches())

    def _branches(self) -> tuple[tuple[str, ...], ...]:
        open_branches = (tuple(conditional.branches) for conditional in self.conditionals)
        return tuple(branches for branches in open_branches if branches)

    def _named(
        self, name: str, start: int, end: int, conditionals: tuple[tuple[str, ...], ...]
    ) -> _Declaration:
        return _Declaration((name,), start, end, tuple(self.scopes), conditionals)

    def _ends(self, token: _Token, following: _Token) -> bool:
        """Returns whether a declaration ends with a token outside of all brackets."""
        if token.text == ";":
            return True
        if token.text == ")" and self.tokens[0].text == "_Pragma":
            return True
        if token.text == ")" and self.head.calls:
            return self._ends_calls(token, following)
        if token.text != "}" or following.text in (",", "{", "catch"):
            return False
        return self.head.is_function

    def _ends_calls(self, token: _Token, following: _Token) -> bool:
        """Returns whether a macro's call is a declaration; it may also be an attribute of the
        declaration that follows."""
        macro = self.head.calls[-1][0].text
        return (
            following.text in (*_AFTER_CALLS, macro)
            or macro in self.declaring
            or _EMPTY_LINE.search(self.text, token.end, following.start) is not None
        )

    def _declaration(self, last: _Token) -> Iterator[_Declaration]:
        """Takes the declaration that ends with a token."""
        first, head = self.tokens[0], self.head
        is_split = self.begun != tuple(self.conditionals) or self.branches != self._branches()
        surroundings = (tuple(self.scopes), self.branches, is_split)
        if first.text == "_Pragma":
            yield _Declaration((_PRAGMA,), first.start, last.end, *surroundings)
        elif last.text == ")":
            for macro, end in head.calls:
                yield _Declaration(
                    (macro.text,), macro.start, end, *surroundings, is_code=True, is_definition=True
                )
        elif (names := _names(head)) and not self._is_instantiation():
            yield _Declaration(
                names, first.start, last.end, *surroundings,
                is_code=True,
                is_definition=head.is_definition,
                is_specialisation=[t.text for t in self.tokens[:3]] == ["template", "<", ">"],
                mark=self._mark(names),
                linkage=head.linkage if head.is_definition else None,
            )  # fmt: skip
        self._reset()

    def _is_instantiation(self) -> bool:
        words = [token.text for token in self.tokens[:3] if token.text != "extern"]
        return words[0] == "template" and words[1] != "<"

    def _mark(self, names: Sequence[str]) -> tuple[int, str] | None:
        """Returns the word that lets several files hold a function or variable, and its place."""
        head = self.head
        tokens = head.tokens[2:] if head.linkage else head.tokens
        words = {token.text for token in tokens}
        if head.is_class or head.is_template or head.calls or words & set(_SHARED):
            return None
        place = next((token for token in tokens if token.text in _SPACES), tokens[0]).start
        if head.is_function and "__global__" not in words:
            return place, "KERNELMINT_INLINE"
        is_member = any(a.text == "::" and b.text in names for a, b in pairwise(tokens))
        is_specialised = self.tokens[0].text == "template"
        return None if is_member or is_specialised else (place, "static")


class _Function:
    """A search for the name of the function that a declaration declares, from token to token."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: list[_Token] = []
        self._opened: list[int] = []  # the places of `<` that no `>` closed yet
        self._beginnings: dict[int, int] = {}  # places of `<`, by the place of their `>`
        self._operator: list[str] | None = None  # the tokens after `operator`
        self._is_known = False
        self.is_initialised = False  # so it is a variable

    def add(self, token: _Token) -> None:
        word = token.text
        if word == "=" and self._operator is None:
            self.is_initialised = True
        if self._is_known:
            return
        if word == "operator":
            self._operator = []
        elif word == "(" and self._operator is not None:
            self.name, self._is_known = "operator" + ("".join(self._operator) or "()"), True
        elif self._operator is not None:
            self._operator.append(word)
        elif word == "(" and not self._opened and (name := self._name_before()) is not None:
            self.name = name
        elif word in ("=", "->", ":"):
            self._is_known = True
        if word == "<":
            self._opened.append(len(self._before))
        elif word == ">":
            self._beginnings[len(self._before)] = self._opened.pop() if self._opened else 0
        self._before.append(token)

    def know(self, name: str) -> None:
        """Takes the name of a pointer to a function, which brackets hold."""
        self.name, self._is_known = name, True

    def _name_before(self) -> str | None:
        """Returns the name before a bracket, or before the <…> that may be between."""
        place = len(self._before) - 1
        while place > 0 and self._before[place].text == ">":
            place = max(self._beginnings[place] - 1, 0)
        token = self._before[place] if self._before else None
        is_name = token is not None and token.kind == "word" and token.text not in _NOT_NAMES
        return token.text if token is not None and is_name else None


class _Head:
    """A declaration's tokens outside of all brackets, without attributes and the contents of
    `template <>`, and the name that they declare so far."""

    def __init__(self) -> None:
        self.tokens: list[_Token] = []
        self.calls: list[tuple[_Token, int]] = []  # macros and the calls' ends, if nothing else is
        self.is_template = False
        self._depth, self._angles, self._previous = 0, 0, ""
        self._is_attribute, self._are_calls = False, True
        self._pointer: str | None = None  # `name` of (*name)
        self._function = _Function()
        self._of_class: _Function | None = None  # from the first word that may begin a class

    def add(self, token: _Token) -> None:
        """Takes the declaration's next token."""
        if token.kind == "mark" and token.text in _CLOSING.values():
            self._depth -= 1
        if (
            self._depth == 0
            and token.text == "<"
            and (self._angles or self._previous == "template")
        ):
            self._angles += 1
        elif self._depth == 0 and token.text == ">" and self._angles:
            self.is_template |= self._previous != "<"
            self._angles -= 1
        elif self._depth == 1 and token.text == self._previous == "[" and not self._angles:
            self._is_attribute = True
            self.tokens.pop()
        elif self._is_attribute:
            self._is_attribute = self._depth > 0
        elif self._depth == 0 and not self._angles and token.text != "template":
            self._add_outer(token)
        elif self._depth == 1 and not self._angles:
            self._add_inner(token)
        if token.kind == "mark" and token.text in _CLOSING:
            self._depth += 1
        self._previous = token.text

    def _add_outer(self, token: _Token) -> None:
        self.tokens.append(token)
        self._function.add(token)
        if self._of_class is None and token.text in (*_CLASSES, "typedef", "using"):
            self._of_class = _Function()
        if self._of_class is not None:
            self._of_class.add(token)
        if self._pointer and self._previous == ")" and token.text in ("(", "["):
            self._function.know(self._pointer)
            if self._of_class is not None:
                self._of_class.know(self._pointer)
        self._add_call(token)

    def _add_inner(self, token: _Token) -> None:
        if self._previous == "(":
            self._pointer = "" if token.text in ("*", "&") else None
        elif self._pointer == "" and token.kind == "word":
            self._pointer = token.text

    def _add_call(self, token: _Token) -> None:
        place = len(self.tokens) % 3
        is_name = token.kind == "word" and token.text not in _NOT_NAMES
        self._are_calls &= (token.text == ")", is_name, token.text == "(")[place]
        if not self._are_calls:
            self.calls = []
        elif place == 0:
            self.calls.append((self.tokens[-3], token.end))

    @property
    def linkage(self) -> tuple[int, int] | None:
        """Returns the place of `extern "C"`."""
        first = self.tokens[:2]
        if [token.text for token in first[:1]] != ["extern"] or first[-1].kind != "text":
            return None
        return first[0].start, first[1].end

    @property
    def is_class(self) -> bool:
        """Returns whether the definition declares a class or another type."""
        return self._of_class is not None and self._of_class.name is None

    @property
    def is_function(self) -> bool:
        """Returns whether the head declares a function."""
        is_other = self.is_class or self._function.is_initialised
        return self.function is not None and not is_other

    @property
    def is_definition(self) -> bool:
        """Returns whether the head, which is whole, defines the name that it declares."""
        words = [token.text for token in self.tokens]
        is_alias = bool({"typedef", "using"} & set(words))
        if "{" in words or "=" in words or is_alias:
            return True
        return not (self.is_function or self.is_class or "extern" in words)

    @property
    def function(self) -> str | None:
        """Returns the name of the function that the head declares; None if it declares none."""
        return self._function.name


def _names(declared: _Head) -> tuple[str, ...]:
    """Returns the names that a declaration declares."""
    head = declared.tokens
    words = [token.text for token in head]
    is_list = False  # several variables or types may be declared
    ends: Sequence[str] = ("=", ";")
    if "namespace" in words[:2]:  # an alias, or `using namespace`
        pass
    elif not declared.is_class:
        if declared.function is not None:
            return (declared.function,)
        ends, is_list = ("=", "[", "{", ";"), True
    elif "typedef" in words:
        ends, is_list = (";",), True
    elif "using" not in words:
        words = words[next(i for i, word in enumerate(words) if word in _CLASSES) :]
        head = head[-len(words) :]
        ends = ("{", ":", "<", "final", ";")
    declarators = _declarators(head) if is_list else [head]
    names = []
    for tokens in declarators:
        end = next((i for i, token in enumerate(tokens) if token.text in ends), len(tokens))
        names += [token.text for token in tokens[:end] if token.kind == "word"][-1:]
    return tuple(names)


def _declarators(head: Sequence[_Token]) -> list[list[_Token]]:
    """Splits a declaration at the commas outside of <…>."""
    parts, angles = [list[_Token]()], 0
    for token in head:
        angles += (token.text == "<") - (token.text == ">")
        if token.text == "," and not angles:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
