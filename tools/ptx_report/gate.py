"""Machine code, budgets and baselines: what makes `--check` fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from codegen.core.ptxas_rows import ReportError, Row, csv_text, read_csv
from codegen.core.words import counted
from codegen.ptxas.files import write_text
from codegen.ptxas.fingerprints import Manifest

from .diff import ALL_LABELS, Change, compare, describe, figure
from .operands import version

# A budget's names, and the figures that they bound.
_BUDGETS = {
    "registers": "used_registers",
    "spill_bytes": "spill_bytes",
    "stack_bytes": "stack_frame",
    "c75": "c75",
    "code_bytes": "code_bytes",
}
LIMITS = tuple(_BUDGETS)


@dataclass(frozen=True)
class Offence:
    """Why a row fails the check."""

    row: Row
    reason: str

    def __str__(self) -> str:
        row = self.row
        parts = [] if row.key in (None, row.symbol) else [row.kernel, *row.arguments]
        parts.append(row.arch or "architecture unknown")
        return f"{row.kernel_config} [{', '.join(parts)}]: {self.reason}"


@dataclass
class Verdict:
    """The result of a check: offences fail it, remarks do not."""

    checked: set[Row] = field(default_factory=set)
    offences: list[Offence] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        """Takes what another check found after this one."""
        self.checked |= other.checked
        self.offences += other.offences
        self.remarks += other.remarks


def check_machine_code(rows: Iterable[Row], verdict: Verdict) -> None:
    """Reports the rows whose machine code has a fault."""
    for row in rows:
        if row.unwritten is None:
            continue
        verdict.checked.add(row)
        for count, what, first in (
            (row.unwritten, "with registers that nothing has written", row.unwritten_at),
            (row.in_flight, "with registers of a product that is in flight", row.in_flight_at),
        ):
            if count:
                reason = (
                    f"{counted(count, 'instruction')} {what}, {first}: ptxas compiled it wrongly, "
                    "and a GPU stops at it or computes nonsense: use another configuration or "
                    "another nvcc (docs/ptx-report.md, Wrong machine code)"
                )
                verdict.offences.append(Offence(row, reason))


class Accepted:
    """Figures that baselines hold: over a budget, they pass until they get worse."""

    def __init__(self, baselines: Iterable[Iterable[Row]]) -> None:
        self._rows = {_identity(row): row for rows in baselines for row in rows}
        self.count = 0  # figures that passed for that reason

    def passes(self, row: Row, name: str, value: int) -> bool:
        """Returns whether the baseline's row has as much."""
        accepted = self._rows.get(_identity(row))
        most = None if accepted is None else figure(accepted, name)
        self.count += (does := most is not None and value <= most)
        return does

    def say(self, verdict: Verdict) -> None:
        """Adds how many figures passed."""
        if self.count:
            verdict.remarks.append(
                f"{counted(self.count, 'figure')} over a budget, as in the baseline, and no worse"
            )


def _identity(row: Row) -> tuple[str | None, ...]:
    symbol = row.symbol if row.key else None  # nvcc renames foreign anonymous namespaces
    return row.kernel_config, symbol, row.arch, row.toolchain


def check_budgets(
    rows: Iterable[Row], manifest: Manifest, accepted: Accepted, verdict: Verdict
) -> None:
    """Holds each row, device functions included, to the `budget:` of its target's spec; to those of
    all targets that share its source."""
    unknown: dict[tuple[str, str], list[Row]] = defaultdict(list)  # by target and budget
    for row in rows:
        owners = manifest.owners(row)
        if not owners:
            continue
        verdict.checked.add(row)
        if row.incomplete:
            reason = f"{row.source}:{row.line}: incomplete, so it cannot be checked: "
            verdict.offences.append(Offence(row, reason + row.incomplete))
        for family, target in owners:
            known = manifest.targets.get((family, target))
            budget = known.budget_on(row.arch) if known else {}
            for reason in over_budget(row, budget, f"{family}.{target}", accepted):
                verdict.offences.append(Offence(row, reason))
            for name in unknown_of(row, budget):
                unknown[f"{family}.{target}", name].append(row)
    for (target, name), lacking in unknown.items():
        verdict.remarks.append(f"{target}: {not_checked(name, lacking)}")


def unknown_of(row: Row, budget: Iterable[str]) -> list[str]:
    """Returns the limits whose figure a row lacks, though nothing of it was lost: spills of a
    binary, and bytes of machine code."""
    return [
        name
        for name in budget
        if figure(row, _BUDGETS[name]) is None
        and (name == "code_bytes" or (row.kind == "object" and name == "spill_bytes"))
        and row.kind != "function"
    ]


def not_checked(name: str, rows: Sequence[Row]) -> str:
    """Returns what to say of rows that a limit cannot be held to."""
    kernels = counted(len(rows), "kernel")
    if name != "spill_bytes":
        return f"{name} is not checked for {kernels}, whose machine code was not read"
    return (
        f"a binary does not say whether its kernels spill, so that {name} is not checked for "
        f"{kernels}, {sum(bool(row.stack_frame) for row in rows)} of them with a stack"
    )


def over_budget(
    row: Row, budget: Mapping[str, int], owner: str, accepted: Accepted | None = None
) -> Iterator[str]:
    """Yields why a row is over a budget, for the figures that no baseline accepts."""
    for name, most in budget.items():
        value = figure(row, _BUDGETS[name])
        if value is None or value <= most:
            continue
        if accepted is None or not accepted.passes(row, _BUDGETS[name], value):
            notes = f" ({' '.join(row.c75)})" if name == "c75" else ""
            yield f"{value} {ALL_LABELS[_BUDGETS[name]]}, the budget of {owner} is {most}{notes}"


def check_presence(absent: Iterable[Row], verdict: Verdict) -> None:
    """Reports the kernels of the manifest that have no row, target by target."""
    lost: dict[tuple[str, str | None], list[Row]] = defaultdict(list)
    for row in absent:
        lost[_dotted(row), row.arch].append(row)
    for (target, _), rows in lost.items():
        others = f", as have {len(rows) - 1} others of {target}" if len(rows) > 1 else ""
        reason = f"in the manifest, and no row{others}: was its log read?"
        verdict.offences.append(Offence(rows[0], reason))


def check_baselines(
    rows: Sequence[Row], baselines: Mapping[Path, Sequence[Row]], verdict: Verdict
) -> None:
    """Holds each row against the committed one of the same key, architecture and compiler.

    If the baseline knows only other compilers, a difference is a remark: it is ptxas's doing,
    or cannot be told from it.
    """
    kernels = [row for row in rows if row.key and row.kind in ("kernel", "object")]
    for path, baseline in baselines.items():
        targets = {_target(row) for row in baseline}
        built = [row for row in kernels if _target(row) in targets]
        _check_compilers([row for row in built if not row.toolchain], path, verdict)
        hold(path, baseline, [row for row in built if row.toolchain], verdict)


def kernels(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows that a baseline of any project holds: without nvlink's totals, which are of
    kernels that have a row."""
    return [row for row in rows if row.kind != "link"]


def hold(path: Path, baseline: Sequence[Row], here: Sequence[Row], verdict: Verdict) -> None:
    """Holds rows against a baseline's of their compiler, or, with a remark, of the newest."""
    if not here:
        return
    verdict.checked.update(here)
    architectures = {row.arch for row in here}
    toolchains = {row.toolchain for row in here}
    same = [row for row in baseline if row.toolchain in toolchains]
    newest = max((row.toolchain or "" for row in baseline), key=version, default="")
    others = [row for row in baseline if (row.toolchain or "") == newest]
    known = [row for row in same or others if row.arch in architectures]
    if not known:
        names = " ".join(sorted(arch or "?" for arch in architectures))
        verdict.remarks.append(f"{path}: has no rows for {names}")
        return
    changes = compare(known, here)
    for change in changes:
        if change.is_worse and same:
            reason = f"{describe(change)} in {path}: {change.cause}"
            verdict.offences.append(Offence(change.row, reason))
    better = "better than the baseline (--update-baseline keeps them so)"
    for word, what in (
        ("added", "not in the baseline yet"),
        ("removed", "no longer built"),
        ("better", better),
    ):
        if count := sum(change.verdict == word for change in changes):
            verdict.remarks.append(f"{path}: {counted(count, 'kernel')} {what}")
    if not same:
        differing = [change for change in changes if change.deltas]
        worse = sum(change.is_worse for change in differing)
        old = " ".join(sorted({row.toolchain or "an unknown compiler" for row in known}))
        new = " ".join(sorted({row.toolchain or "an unknown compiler" for row in here}))
        verdict.remarks.append(
            f"{path}: is of {old}, this build of {new}: {len(differing)} kernels differ, "
            f"{worse} of them worse; not held against the code"
        )


def _check_compilers(unknown: Sequence[Row], path: Path, verdict: Verdict) -> None:
    """Says that rows of unknown compilers cannot be held against a baseline. Logs fail, as their
    build knows its compiler; an object comes from anywhere."""
    if not unknown:
        return
    what = "its compiler is" if len(unknown) == 1 else f"compilers of {len(unknown)} kernels are"
    reason = f"{what} unknown, so that nothing is held against {path}"
    if all(row.kind == "object" for row in unknown):
        verdict.remarks.append(f"{_dotted(unknown[0])}: {reason}")
        return
    advice = (
        "end the build, which writes ptxas.csv beside the folder of its logs, and give that folder "
        "or ptxas.csv, or --installed"
    )
    verdict.offences.append(Offence(unknown[0], f"{reason}: {advice}"))


def check_changes(changes: Iterable[Change], verdict: Verdict) -> None:
    """Reports the kernels that got worse in `--diff`, unless only the compiler changed."""
    for change in changes:
        if change.is_worse:
            offence = Offence(change.row, describe(change))
            old, new = change.old, change.new
            if old and new and old.code and old.code == new.code and old.toolchain != new.toolchain:
                verdict.remarks.append(f"{offence}: {change.cause}; not held against the code")
            else:
                verdict.offences.append(offence)
        verdict.checked.add(change.row)


def _target(row: Row) -> tuple[str, ...]:
    return tuple(row.kernel_config.split(".", 2)[:2])


def _dotted(row: Row) -> str:
    return ".".join(_target(row))


def _family_folders(folder: Path, family: str) -> list[Path]:
    """Returns the family's folders within a folder of families, or within its groups. The folder
    of its spec is the first: a move of a family may leave another of its name behind."""
    paths = [path for path in (folder / family, *folder.glob(f"*/{family}")) if path.is_dir()]
    return sorted(paths, key=lambda path: not (path / "family.yaml").is_file())


def baseline_paths(rows: Iterable[Row], folders: Sequence[Path]) -> dict[Path, list[Row]]:
    """Returns where the baselines of the rows' targets are, or would be, with the rows of each."""
    paths: dict[Path, list[Row]] = defaultdict(list)
    for row in rows:
        if row.key is None or row.kind not in ("kernel", "object"):
            continue
        family, target, _ = row.key.split(".", 2)
        of_family = (path for folder in folders for path in _family_folders(folder, family))
        for path in of_family:
            paths[path / f"{target}.ptxas.csv"].append(row)
            break
    return dict(paths)


def read_baselines(rows: Iterable[Row], folders: Sequence[Path]) -> dict[Path, list[Row]]:
    """Returns the committed baselines of the rows' targets. Raises ReportError for an unreadable
    one."""
    return {path: read_csv(path) for path in baseline_paths(rows, folders) if path.exists()}


def write_baselines(rows: Iterable[Row], folders: Sequence[Path]) -> list[Path]:
    """Replaces the baselines' rows of these compilers and architectures by `rows`; keeps others.

    Raises ReportError if a row cannot be a baseline, or does not say its compiler.
    """
    texts = {}
    for path, new in baseline_paths(rows, folders).items():
        for row in new:
            if row.toolchain is None:
                raise ReportError(
                    f"{row.kernel_config}: its compiler is unknown, so it cannot be a baseline: "
                    "use the installed package's report (--installed)"
                )
            if row.kind == "object" and row.lacks_spills:
                raise ReportError(
                    f"{row.kernel_config}: its spills are unknown, so it cannot be a baseline: "
                    "give the build's logs or its ptxas.csv"
                )
        # An object is of a pack's library, with the figures of the pack's table.
        texts[path] = merged(path, [row._replace(kind="kernel") for row in new])
    if not texts:
        raise ReportError(
            "no kernel of a known family in the input: there is no baseline to write; for other "
            "projects name a file: --baselines FILE.csv"
        )
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def merged(path: Path, new: Sequence[Row]) -> str:
    """Returns the text of a baseline with the rows of these compilers and architectures replaced.

    What varies from build to build (times, lines, objects) is left out, and what no baseline may
    excuse. Raises ReportError for an incomplete row.
    """
    for row in new:
        if row.incomplete:
            raise ReportError(f"{row.kernel_config}: incomplete, no baseline: {row.incomplete}")
    replaced = {(row.toolchain, row.arch) for row in new}
    old = read_csv(path) if path.exists() else []
    kept = [row for row in old if (row.toolchain, row.arch) not in replaced]
    rows = [
        row._replace(
            compile_time_ms=None,
            line=None,
            source=None,
            warnings=(),
            unwritten=None,
            unwritten_at=None,
            in_flight=None,
            in_flight_at=None,
        )
        for row in [*kept, *new]
    ]
    rows.sort(key=lambda row: (row.toolchain or "", row.arch or "", row.kernel_config, row.symbol))
    return csv_text(rows)
