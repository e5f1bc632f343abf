"""Shows that implementations of block-sparse attention for HSTU agree, or where they do not.

kernelmint compare [--implementations torch,triton,sm80,cpu] [--mode both]
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import click
import torch
from kernelmint.tools.comparison import Difference, Selections, Tolerance
from kernelmint.tools.output_file import OutputFile, write

from .. import semantics
from .cases import CASES, SEED_CASES, Case, draw
from .implementations import NAMES, Implementation, UnavailableError, implementation_of
from .judge import Computed, Judge, Verdict

RULE = "=" * 80


def _implementations(_context: Any, _parameter: Any, value: str) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise click.BadParameter(f"unknown {name!r}: expected one of {', '.join(NAMES)}")
    if len(names) < 2:
        raise click.BadParameter("name at least two")
    return names


def _cases(_context: Any, _parameter: Any, value: str) -> list[Case]:
    groups = {"seed": SEED_CASES, "all": tuple(CASES)}
    names = itertools.chain.from_iterable(
        groups.get(name.strip(), (name.strip(),)) for name in value.split(",")
    )
    chosen = []
    for name in names:
        if name not in CASES:
            raise click.BadParameter(f"unknown {name!r}: expected seed, all, {', '.join(CASES)}")
        chosen.append(CASES[name])
    return chosen


@click.command(help=__doc__)
@click.option(
    "--implementations", default="torch,triton", show_default=True, callback=_implementations,
    help="Two or more of " + ", ".join(NAMES) + ": every pair is compared",
)  # fmt: skip
@click.option(
    "--mode", type=click.Choice([*semantics.MODES, "both"]), default="both", show_default=True,
    help="Which rule of block selection.",
)  # fmt: skip
@click.option(
    "--cases", default="seed", show_default=True, callback=_cases,
    help="seed, all, or some of " + ", ".join(CASES),
)  # fmt: skip
@click.option("--rtol", default=1e-3, show_default=True, help="Relative tolerance.")
@click.option("--atol", default=1e-4, show_default=True, help="Absolute tolerance.")
@click.option("--seed", default=42, show_default=True, help="Case i draws with seed + i.")
@click.option("--device", default=None, help="Default: cuda if there is one, else cpu.")
@click.option(
    "--dot", default=None, help="Precision of the products. Default: each one's most exact."
)
@click.option("--json", "json_path", type=OutputFile(), help="Write the findings as JSON.")
def main(
    implementations: list[str],
    mode: str,
    cases: list[Case],
    rtol: float,
    atol: float,
    seed: int,
    device: str | None,
    dot: str | None,
    json_path: Path | None,
) -> None:
    """Exits 0 if all agree, 1 if something differs, 2 if something cannot run."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    tolerance = Tolerance(rtol, atol)
    modes = ("fixed", "literal") if mode == "both" else (mode,)
    report: dict[str, Any] = {
        "seed": seed,
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else platform.processor(),
        "torch": torch.__version__,
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "rtol": rtol,
        "atol": atol,
    }
    results = []
    try:
        loaded = [implementation_of(name, device, dot) for name in implementations]
        report["TRITON_INTERPRET"] = os.environ.get("TRITON_INTERPRET")
        click.echo(_heading(f"Block-sparse attention: {', '.join(x.title for x in loaded)}"))
        click.echo(f"Using device: {device} ({report['device_name'] or 'unnamed'})")
        click.echo(f"torch {torch.__version__}, seed {seed}, rtol {rtol:g}, atol {atol:g}")
        for chosen in modes:
            for i, case in enumerate(cases):
                for function in case.functions:
                    results += _compare_case(
                        function, case, chosen, loaded, tolerance, seed + i, device
                    )
    except UnavailableError as error:
        click.echo(f"✗ {error}", err=True)
        sys.exit(2)
    report["results"] = results
    if json_path is not None:
        write(json_path, json.dumps(report, indent=1, default=str) + "\n")
    failed = [x for x in results if not x["passed"]]
    click.echo(_heading("Summary"))
    for x in results:
        click.echo(
            f"{_mark(x['passed'])} {x['function']:<24} {x['mode']:<8} {x['case']:<11} {x['pair']}"
        )
    click.echo(f"\n{_mark(not failed)} {len(results) - len(failed)} of {len(results)} pairs agree")
    sys.exit(1 if failed else 0)


def _compare_case(
    function: str,
    case: Case,
    mode: str,
    loaded: list[Implementation],
    tolerance: Tolerance,
    seed: int,
    device: str,
) -> list[dict[str, Any]]:
    click.echo(_heading(f"Testing {function}, mode {mode}, configuration {case.name}"))
    click.echo(f"{case}" + (f"   ({case.why})" if case.why else ""))
    inputs = draw(case, seed, device)
    results = {}
    for one in loaded:
        click.echo(f"\nRunning the {one.title} implementation...")
        results[one.name] = Computed(function, one, inputs, mode)
        click.echo(f"✓ {one.title} implementation done")
        for label, tensor in results[one.name].returned.items():
            click.echo(f"  - {label}_{one.name} shape: {tensor.shape}")
    judge = Judge(function, inputs, mode, tolerance)
    rows = []
    for a, b in itertools.combinations(loaded, 2):
        click.echo(f"\nComparing {b.title} with {a.title}...")
        verdict = judge.verdict((a.name, b.name), (results[a.name], results[b.name]))
        _print_verdict(verdict)
        click.echo(
            f"\n{RULE}\n{_mark(verdict.passed)} {function}: {b.name} against {a.name} "
            f"{'passed' if verdict.passed else 'FAILED'}\n{RULE}"
        )
        rows.append(
            {
                "case": case.name,
                "mode": mode,
                "seed": seed,
                "semantics": {
                    key: str(value) for key, value in vars(semantics.MODES[mode]).items()
                },
                "pair": f"{b.name} against {a.name}",
                **verdict.as_dict(),
            }
        )
    return rows


def _print_verdict(verdict: Verdict) -> None:
    for difference in verdict.differences:
        _print_difference(difference)
    if verdict.selections is not None:
        _print_selections(verdict.selections)
    if verdict.excluded_tokens:
        click.echo(
            f"  - {verdict.excluded_tokens:.2%} of the tokens have lists that differ by near-ties: "
            "left out of the comparison end to end"
        )
    for name, budget in verdict.budgets.items():
        click.echo(
            f"  - error of {name} against fp64: max={budget.max_abs:.6e}, "
            f"rms ratio={budget.rms_ratio:.3e}, beyond tolerance={budget.share_beyond:.2%}"
        )
    for line in verdict.places:
        click.echo(f"  - {line}")


def _is_compared(x: Difference | Selections) -> bool:
    """Says whether they match; false if nothing else is known of them than a problem."""
    click.echo(f"{_mark(x.passed)} {x.name}: {'match' if x.passed else 'MISMATCH'}")
    if x.problem is not None:
        click.echo(f"  - {x.problem}")
    return x.problem is None


def _print_difference(x: Difference) -> None:
    if not _is_compared(x):
        return
    click.echo(
        f"  - max_diff={x.max_abs:.6e}, mean_diff={x.mean_abs:.6e}, std_diff={x.std_abs:.6e}"
    )
    click.echo(f"  - max_rel_diff={x.max_rel:.6e}, mean_rel_diff={x.mean_rel:.6e}")
    click.echo(
        f"  - p99={x.p99:.3e}, p99.9={x.p999:.3e}, rms ratio={x.rms_ratio:.3e}, "
        f"max ulp={x.max_ulp:.3g}"
    )
    if x.passed:
        return

    def share(count: int) -> str:
        return f"{count} of {x.compared} ({count / x.compared:.2%})"

    click.echo(f"  - beyond atol + rtol * |expected|: {share(x.beyond)}")
    click.echo(f"  - beyond rtol={x.tolerance.rtol:g}: {share(x.beyond_rtol)}")
    click.echo(f"  - beyond atol={x.tolerance.atol:g}: {share(x.beyond_atol)}")
    click.echo(f"  - NaN: {x.nan[0]} against {x.nan[1]}; Inf: {x.inf[0]} against {x.inf[1]}")
    click.echo(
        f"  - range: [{x.range_actual[0]:.6g}, {x.range_actual[1]:.6g}] against "
        f"[{x.range_expected[0]:.6g}, {x.range_expected[1]:.6g}]"
    )
    click.echo(f"  - worst at {x.worst}")


def _print_selections(x: Selections) -> None:
    if not _is_compared(x):
        return
    click.echo(
        f"  - of {x.rows} lists {x.identical} are identical, {x.order_only} differ in order and "
        f"{x.tie_explained} in blocks by near-ties (largest gap of scores {x.largest_gap:.2e})"
    )
    if not x.passed:
        click.echo(
            f"  - {x.wrong} are wrong, {x.broken_ties} break the tie rule (lower index first)"
        )
        click.echo(f"  - worst at {x.worst}")


def _heading(text: str) -> str:
    return f"\n{RULE}\n{text}\n{RULE}"


def _mark(passed: bool) -> str:
    return "✓" if passed else "✗"


if __name__ == "__main__":
    main()
