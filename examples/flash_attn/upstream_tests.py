"""flash-attn's own tests, of its source distribution, against this package, on a GPU.

    python upstream_tests.py [--most N] [--seed N] [--processes N] [--seconds N] [--results FILE]
                             [options of pytest's]

They are fetched (or found in KERNELMINT_SOURCES) and run as they are: the module `flash_attn` that
they import is this package, with upstream's other modules. Of their cases, a million, those are
kept whose kernels this package holds, and of each function at most N, drawn evenly; what is left
out is counted, by the reason. They run in an order that is drawn, too, so that what was reached in
`--seconds` is an even sample. They need einops and Triton.
"""

from __future__ import annotations

import argparse
import collections
import csv
import functools
import importlib.resources
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import flash_attn_pack
import pytest
import torch
import yaml

import kernelmint
from codegen.sources import archives

# The archive's package without its compiled parts: its other modules are its own.
PACKAGE = "from flash_attn_pack import *\n__path__.append({upstream!r})\n"
INTERFACE = """
from flash_attn_pack.flash_attn_interface import *
from flash_attn_pack.flash_attn_interface import _get_block_size_n
"""
DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
# Parameters of upstream's tests that say which kernel is asked for, or that it skips the case.
DECIDING = {
    "d", "dtype", "causal", "local", "alibi", "dropout_p", "softcap", "new_kv", "rotary_fraction",
    "has_leftpad", "paged_kv_block_size",
}  # fmt: skip
HEAD_DIMS = (32, 64, 96, 128, 192, 256)
COLUMNS = ("drawn", "passed", "failed", "no kernel", "skipped by upstream", "not reached")
KEPT_MEMORY = 4 << 30  # bytes that a process may keep from PyTorch's other ones


def upstream() -> Path:
    """Returns the archive that the specs pin."""
    specs = importlib.resources.files(flash_attn_pack) / "_pack/kernel_specs/flash_attn/sm80.yaml"
    if not specs.is_file():  # an editable install's are the project's
        specs = Path(__file__).parent / "kernel_specs/flash_attn/sm80.yaml"
    pin = yaml.safe_load(specs.read_text())["build"]["archives"]["upstream"]
    return archives.folder(f"pypi:{pin['pypi']}=={pin['version']}", pin["sha256"])


def asked(case: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the forward kernel that a case decides."""
    d = -(-case["d"] // 8) * 8  # padded
    parameters = {
        "head_dim": next(h for h in HEAD_DIMS if d <= h),
        "alibi": case.get("alibi", False),
        "local": case.get("local", False),
        "dropout": case.get("dropout_p", 0.0) > 0,
        "capped": case.get("softcap", 0.0) > 0,
    }
    parameters["even_k"] = d in HEAD_DIMS and not parameters["alibi"] and not parameters["dropout"]
    if "causal" in case:
        parameters["causal"] = case["causal"]
    if "dtype" in case:
        parameters["dtype"] = DTYPES[case["dtype"]]
    return parameters


@functools.cache
def _built() -> tuple[dict[str, Any], ...]:
    infos = kernelmint.kernels("flash_attn_forward", "sm80")
    return tuple(dict(info.parameters) for info in infos if info.built)


@functools.cache
def _lacking(parameters: frozenset[tuple[str, Any]]) -> str:
    if any(all(have[n] == v for n, v in parameters) for have in _built()):
        return ""
    words = {"head_dim": "head dimension", "even_k": "head dimension", "capped": "cap",
             "local": "window", "alibi": "ALiBi", "causal": "mask"}  # fmt: skip
    order = ("dropout", "capped", "alibi", "local", "head_dim", "even_k", "causal", "dtype")
    values = dict(parameters)
    for name in order:
        if name in values and not any(have[name] == values[name] for have in _built()):
            return words.get(name, name)
    return "head dimension" if not values["even_k"] else "several parameters at once"


def lacking(case: Mapping[str, Any]) -> str:
    """Returns why the package has no forward kernel for a case; "" if it has one."""
    if case.get("has_leftpad") and case.get("paged_kv_block_size") is not None:
        return "skipped by upstream"
    if case.get("new_kv") is False and case.get("rotary_fraction", 0.0) > 0:
        return "skipped by upstream"
    return _lacking(frozenset(asked(case).items()))


class Some:
    """A plugin of pytest that draws the cases of a process, and writes the outcome of each."""

    def __init__(self, options: argparse.Namespace) -> None:
        share, shares = map(int, options.share.split("/"))
        self._share, self._shares, self._options = share, shares, options
        self._begin = time.monotonic()
        self._reason = ""

    def _write(self, rows: Iterable[Sequence[Any]]) -> None:
        with Path(self._options.part).open("a", newline="") as file:
            csv.writer(file).writerows(rows)

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generates the kept cases in place of all."""
        own = metafunc.definition.own_markers
        marks = [mark for mark in own if mark.name == "parametrize"]
        if not marks:
            return
        own[:] = [mark for mark in own if mark.name != "parametrize"]
        names = [[name.strip() for name in mark.args[0].split(",")] for mark in marks]
        values = [
            [value if len(some) > 1 else (value,) for value in mark.args[1]]
            for some, mark in zip(names, marks, strict=True)
        ]
        decide = [any(name in DECIDING for name in some) for some in names]
        order = sorted(range(len(names)), key=lambda i: not decide[i])
        flat = list(itertools.chain(*(names[i] for i in order)))
        others = list(itertools.product(*(values[i] for i in order if not decide[i])))
        counts: collections.Counter[str] = collections.Counter()
        kept = []
        for deciding in itertools.product(*(values[i] for i in order if decide[i])):
            case = tuple(itertools.chain(*deciding))
            reason = lacking(dict(zip(flat, case, strict=False)))
            counts[reason] += len(others)
            if not reason:
                kept += [(*case, *itertools.chain(*other)) for other in others]
        name = metafunc.definition.name
        random.Random(f"{self._options.seed} {name}").shuffle(kept)
        drawn = kept[: self._options.most]
        if self._share == 0:
            self._write(("count", name, reason, count) for reason, count in counts.items())
        ids = ["-".join(str(value).removeprefix("torch.") for value in case) for case in drawn]
        metafunc.parametrize(flat, drawn, ids=ids)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the share of this process, in an order that is drawn."""
        random.Random(self._options.seed).shuffle(items)
        items[:] = items[self._share :: self._shares]
        self._write(("item", _function(item.nodeid), "", 1) for item in items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Checks whether there is time for another case."""
        self._reason = ""
        if time.monotonic() - self._begin > self._options.seconds:
            item.session.shouldstop = "no time is left"
            self._reason = "not reached"
            pytest.skip("no time is left")  # pytest stops behind it; counted as not reached

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Records a missing kernel as no failure."""
        outcome: Any = yield
        error = outcome.excinfo and outcome.excinfo[1]
        if isinstance(error, (kernelmint.KernelNotFound, kernelmint.BuildError)):
            self._reason = "no kernel"  # skipped for pytest, in the table a column of its own
            outcome.force_exception(pytest.skip.Exception(" ".join(str(error).split())[:400]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Writes the outcome of a case."""
        if report.when == "call" or not report.passed:
            outcome = report.outcome
            reason = ""
            if report.skipped:
                outcome = self._reason or "skipped by upstream"
                reason = str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else ""
            elif report.failed:
                reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
                reason = " ".join((reason or str(report.longrepr)[-800:]).split())[:400]
            self._write([(outcome, report.nodeid.rpartition("::")[2], reason, report.duration)])

    def pytest_runtest_teardown(self) -> None:
        """Leaves memory to the other processes."""
        if torch.cuda.memory_reserved() > KEPT_MEMORY:
            torch.cuda.empty_cache()


def _function(node: str) -> str:
    return node.rpartition("::")[2].partition("[")[0]


def run_share(folder: Path, options: argparse.Namespace, rest: Sequence[str]) -> int:
    """Runs one process's part."""
    os.environ.pop("KERNELMINT_BUILD", None)  # an absent kernel is counted, not built
    sys.path.insert(0, str(folder))
    arguments = ["-q", "--tb=short", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    plugins = [Some(options)]
    return int(pytest.main([*arguments, str(folder / "test_flash_attn.py"), *rest], plugins))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns the outcomes of the cases, a line for each function of upstream's."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    reasons: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for kind, name, reason, number in rows:
        if kind == "count":
            reasons[name][reason] += int(number)
        elif kind == "item":
            counts[name]["drawn"] += 1
        else:
            counts[_function(name)][kind] += 1
    lines = ["function: all cases; with kernels here; " + "; ".join(COLUMNS)]
    for name, outcomes in counts.items():
        ended = sum(outcomes[c] for c in COLUMNS if c not in ("drawn", "not reached"))
        outcomes["not reached"] = outcomes["drawn"] - ended
        shown = [reasons[name].total(), reasons[name][""], *(outcomes[c] for c in COLUMNS)]
        lines.append(f"{name}: " + "; ".join(f"{number:,}" for number in shown))
    all_counts, all_reasons = (sum(c.values(), collections.Counter()) for c in (counts, reasons))
    shown = [all_reasons.total(), all_reasons[""], *(all_counts[c] for c in COLUMNS)]
    lines.append("all: " + "; ".join(f"{number:,}" for number in shown))
    left = ", ".join(f"{r} {n:,}" for r, n in all_reasons.most_common() if r)
    lines.append(f"left out before, each counted at its first reason: {left}")
    reasons_without = collections.Counter(row[2] for row in rows if row[0] == "no kernel")
    lines += [f"no kernel, {count}: {text}" for text, count in reasons_without.most_common(20)]
    lines += [f"FAILED {row[1]}: {row[2]}" for row in rows if row[0] == "failed"]
    return "\n".join(lines)


def run(
    most: int, seed: int, processes: int, seconds: float, results: str, rest: list[str]
) -> bool:
    """Runs the cases; returns whether none failed."""
    folder = upstream()
    with tempfile.TemporaryDirectory() as work:
        package = Path(work, "flash_attn")
        package.mkdir()
        text = PACKAGE.format(upstream=str(folder / "flash_attn"))
        package.joinpath("__init__.py").write_text(text)
        package.joinpath("flash_attn_interface.py").write_text(INTERFACE)
        tests = Path(work, "test_flash_attn.py")
        tests.write_bytes(folder.joinpath("tests/test_flash_attn.py").read_bytes())
        parts = [Path(work, f"{share}.csv") for share in range(processes)]
        command = [
            sys.executable,
            str(Path(sys.argv[0]).resolve()),
            f"--most={most}",
            f"--seed={seed}",
        ]
        command += [f"--seconds={seconds}", f"--folder={work}", *rest]
        running = []
        for share, part in enumerate(parts):
            own = [f"--share={share}/{processes}", f"--part={part}"]
            with Path(f"{part}.log").open("w") as log:
                running.append(
                    subprocess.Popen(
                        [*command, *own], stdout=log, stderr=subprocess.STDOUT, cwd=work
                    )
                )
        statuses = [one.wait() for one in running]
        rows = [row for p in parts if p.exists() for row in csv.reader(p.open(newline=""))]
        for status, part in zip(statuses, parts, strict=True):
            # 1: tests failed, 2: stopped by the clock, 5: none were selected.
            if status not in (0, 1, 2, 5):
                print(f"a process ended with {status}:", Path(f"{part}.log").read_text()[-3000:])
                rows.append(("failed", "process", f"exit status {status}", "0"))
    if results:
        with Path(results).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    print(table(rows), flush=True)
    return any(row[0] == "passed" for row in rows) and all(row[0] != "failed" for row in rows)


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=60, help="cases of each function")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9, help="after which none is begun")
    parser.add_argument("--results", default="", help="a CSV file: what became of each case")
    for own in ("--share", "--part", "--folder"):
        parser.add_argument(own, help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.share:
        return run_share(Path(options.folder), options, rest)
    good = run(
        options.most, options.seed, options.processes, options.seconds, options.results, rest
    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
