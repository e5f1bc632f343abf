"""Random specs: good ones with hard values and names in them, and real ones with damage done."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

Texts = Mapping[str, str]  # a family's files, by name

# Small and large, at the edges of what C++ holds.
INTEGERS = (
    *(0, 1, 2, 3, 7, 8, 16, 64, 100, 4096, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1),
    *(2**63, 2**64, 10**30, 4611686018427387904),
)
FLOATS = ("0.5", "3.0", "1e308", "1e-308", "1e400", "5e-324", "0.1", "1.7976931348623157e308")
# Names that generated C++ or Python, or the expression language, might read otherwise.
NAMES = (
    *("tile", "B_r", "stages", "warps", "x_", "T", "n", "mode", "rows", "flag", "Args", "key"),
    *("errno", "NULL", "INT_MAX", "M_PI", "auto", "union", "class", "None", "self", "std"),
    *("kernelmint", "bf16", "default", "min", "log2", "family", "target", "if", "lambda", "linux"),
    *("mode_type", "symbols", "parameters", "a b", "é", "_x", "x__y", "1x", "true", "on", "EOF"),
    *("assert", "TensorView", "f32", "isa", "launch", "torch", "int64_t", "Kernel", "match", ""),
)
TEXTS = (
    *("plain", '"""', '""""', '"', "\\", "\\\\", "'", "a\nb", "*/", "//", "??/", "${x}", "% if x:"),
    *(
        "## x",
        "<%",
        "\x07",
        "\u202e",
        "\0",
        "\u2028",
        "é",
        "x" * 300,
        "{",
        "}",
        ";",
        "#",
        "%s",
        " ",
    ),
)


def quoted(text: str) -> str:
    """The text in YAML's double quotes."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
    return '"' + "".join(
        escapes.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text
    ) + '"'  # fmt: skip


class Expressions:
    """Random expressions over names of known kinds."""

    def __init__(self, rng: random.Random, ints: Sequence[str], bools: Sequence[str]) -> None:
        self.rng = rng
        self.ints = [*ints]
        self.bools = [*bools]

    def integer(self, depth: int = 3) -> str:
        """An expression of kind int."""
        rng, more = self.rng, depth - 1
        if depth == 0 or rng.random() < 0.2:
            small = rng.choice(INTEGERS[:10] if rng.random() < 0.8 else INTEGERS)
            return rng.choice([*self.ints, str(small)])
        a, b = self.integer(more), self.integer(more)
        makers: list[Callable[[], str]] = [
            lambda: f"({a} {rng.choice('+-*')} {b})",
            lambda: f"({a} {rng.choice(['//', '%'])} {b})",
            lambda: f"{rng.choice(['min', 'max', 'ceil_div'])}({a}, {b})",
            lambda: f"({a} if {self.condition(more)} else {b})",
            lambda: f"(-{a})",
            lambda: f"log2({a})",
            lambda: f"({a} ** {rng.choice([0, 1, 3, b])})",
            lambda: f"max({self.condition(more)}, {self.condition(more)})",
        ]
        return rng.choice(makers)()

    def condition(self, depth: int = 3) -> str:
        """An expression of kind bool."""
        rng, more = self.rng, depth - 1
        if depth <= 0 or rng.random() < 0.1:
            return rng.choice([*self.bools, "true", "false"])
        a, b = self.number(more), self.number(more)
        comparison = rng.choice(["==", "!=", "<", "<=", ">", ">="])
        makers: list[Callable[[], str]] = [
            lambda: f"({a} {comparison} {b})",
            lambda: f"(0 <= {a} {comparison} {b})",
            lambda: f"({self.condition(more)} {rng.choice(['and', 'or'])} {self.condition(more)})",
            lambda: f"(not {self.condition(more)})",
            lambda: f"is_pow2({self.integer(more)})",
            lambda: f"({a} {rng.choice(['in', 'not in'])} [{b}, 1, 2.5])",
        ]
        return rng.choice(makers)()

    def number(self, depth: int = 3) -> str:
        """An expression of kind int or float."""
        rng, more = self.rng, depth - 1
        if depth <= 0 or rng.random() < 0.6:
            return self.integer(max(depth, 0))
        a, b = self.number(more), self.number(more)
        return rng.choice(
            [
                rng.choice(FLOATS),
                f"({a} / {b})",
                f"({a} {rng.choice('+-*')} {rng.choice(FLOATS[:3])})",
                f"({a} ** {rng.choice(['0.5', '-1', '-0.5'])})",
                f"min({a}, {rng.choice(FLOATS)})",
            ]
        )


def good(rng: random.Random, family: str) -> Texts:
    """A family for the CPU that may well be accepted: parameters, derived values, rules, texts."""

    def text() -> str:
        return quoted(rng.choice(TEXTS if rng.random() < 0.2 else TEXTS[:13]))

    def name(fallback: str) -> str:
        return quoted(rng.choice(NAMES)) if rng.random() < 0.04 else fallback

    ints = [name(f"i{i}") for i in range(rng.randrange(1, 4))]
    bools = [name(f"b{i}") for i in range(rng.randrange(3))]
    shared = Expressions(rng, ["N", "M"], [])
    sizes = Expressions(rng, ["N", "M", "c"], [])
    facts = Expressions(rng, ["N", "M", "sm_count"], [])
    conditions = Expressions(rng, ["N", "M", "c", "sm_count"], [])
    numbers = Expressions(rng, ints, bools)
    parameters = [
        f"  {n}: {{type: int, token: t{i}x, doc: {text()}}}" for i, n in enumerate(ints)
    ] + [f"  {n}: {{type: bool, token: f{i}x}}" for i, n in enumerate(bools)]
    derived = []
    for i in range(rng.randrange(5)):
        new = name(f"d{i}")
        derived.append(f"  {new}: {quoted(numbers.number())}")
        numbers.ints.append(new)
    enum = rng.random() < 0.4
    values = rng.sample(["auto", "errno", "key", "split", "std", "mode", "f32", "linux"], 3)
    lists = {n: rng.sample([-5, -1, 0, 1, 2, 3, 64, 2**31 - 1], 2) for n in ints}
    product = ", ".join(f"{n}: {v}" for n, v in lists.items())
    calls = Expressions(rng, [*numbers.ints, *conditions.ints], bools)
    target = [
        *("target: cpu", "kernel: cpu.h", "parameters:", *parameters),
        *([f"  mode: {{type: enum, values: [{', '.join(values)}]}}"] if enum else []),
        *(["derived:", *derived] if derived else []),
        *("requires:", f"  - {{that: {quoted(calls.condition())}, because: {text()}}}"),
        *("sets:", f"  default: {{product: {{{product}}}}}"),
    ]
    return {
        "family.yaml": "\n".join(
            [
                f"family: {family}",
                f"summary: {text()}",
                "arguments:",
                f"  x: {{tensor: [N, M], dtype: dtype, doc: {text()}}}",
                f"  y: {{output: [{quoted(sizes.integer())}], dtype: f32}}",
                f"  s: {{scalar: f64, default: {quoted(facts.number())}, doc: {text()}}}",
                f"  c: {{scalar: i64, default: {quoted(shared.integer())}}}",
                "parameters:",
                f"  dtype: {{type: dtype, values: [{rng.choice(['bf16', 'bf16, f32'])}]}}",
                "requires:",
                f"  - {{that: {quoted(conditions.condition())}, because: {text()}}}",
            ]
        )
        + "\n",
        "cpu.yaml": "\n".join(target) + "\n",
    }


def mutant(rng: random.Random, seeds: Sequence[Texts]) -> Texts:
    """The files of a real family, with one to four kinds of damage."""
    files = dict(rng.choice(seeds))
    for _ in range(rng.randrange(1, 5)):
        name = rng.choice(sorted(files))
        files[name] = rng.choice(_DAMAGE)(rng, files[name])
    return files


def _replace_word(rng: random.Random, text: str) -> str:
    words = list(re.finditer(r"[\w.]+", text))
    if not words:
        return text
    word = rng.choice(words)
    pool = rng.choice([NAMES, FLOATS, [str(i) for i in INTEGERS], [w[0] for w in words]])
    return text[: word.start()] + rng.choice(list(pool)) + text[word.end() :]


def _replace_value(rng: random.Random, text: str) -> str:
    values = list(re.finditer(r"(?<=: )[^,}\]\n]+", text))
    if not values:
        return text
    value = rng.choice(values)
    new = rng.choice(
        [
            quoted(rng.choice(TEXTS)),
            quoted(Expressions(rng, ["B_r", "d_head", "N"], ["causal"]).number()),
            *("[]", "{}", "null", "~", "*a", "&a 1", "!!python/object:os.system x", "|\n  a\n  b"),
            "[" * rng.randrange(1, 300),
            str(list(range(rng.choice([3, 30, 3000])))),
        ]
    )
    return text[: value.start()] + new + text[value.end() :]


def _move_line(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    if not lines:
        return text
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[i]
        case 1:
            lines[i], lines[j] = lines[j], lines[i]
        case 2:
            lines[i:i] = lines[j : j + rng.randrange(1, 8)]
        case 3:
            lines[i] = " " * rng.randrange(5) + lines[i].lstrip(" ")
    return "".join(lines)


def _change_characters(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    new: str = rng.choice(
        [*"[]{}:,#&*!|>%@`'\"\\\t\n- 0919.eE~?<", "\ud800", "\x1b", "é", "\U0001f600"]
    )
    return text[:place] + new * rng.choice([1, 1, 1, 50]) + text[place + rng.randrange(3) :]


def _grow_product(rng: random.Random, text: str) -> str:
    lists = list(re.finditer(r"\[[^\[\]]*\]", text))
    chosen = rng.sample(range(len(lists)), min(len(lists), rng.randrange(1, 12)))
    for found in (lists[i] for i in sorted(chosen, reverse=True)):
        count = rng.choice([2, 10, 100])
        values = ", ".join(str(i) for i in range(count))
        text = text[: found.start()] + f"[{values}]" + text[found.end() :]
    return text


def _truncate(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


_DAMAGE: tuple[Callable[[random.Random, str], str], ...] = (
    *(_replace_word, _replace_word, _replace_value, _replace_value, _move_line, _move_line),
    *(_change_characters, _grow_product, _truncate),
)
