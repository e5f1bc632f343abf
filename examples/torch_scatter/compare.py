"""This pack beside upstream's own build, on one device: results bit for bit, and times.

    python compare.py [--device cuda] [--no-times] [--dtypes float …] [--only gather …]

It needs torch_scatter, too: installed, or what upstream_build.py makes of it on PYTHONPATH. Results
are compared over random inputs, all functions, reductions and dtypes, and their gradients. On a GPU
atomics have no order, so inputs are drawn there that have one result in any: sums of small
integers, products of powers of two, and no two equal values along what is reduced.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import scatter_pack
import torch
import torch_scatter
from kernelmint.tools.bench import print_times

DTYPES = ["half", "bfloat16", "float", "double", "int", "long"]


def random_case(seed: int, dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Makes a src of rank 1 to 3, an index that ascends, its pointers, and an index in no order."""
    torch.manual_seed(seed)
    rank, at = [(1, 0), (2, 0), (2, 1), (3, 1)][seed % 4]
    shape = [int(torch.randint(1, 40, ())) for _ in range(rank)]
    shape[at] = int(torch.randint(1, 300, ()))
    src = torch.randn(shape) * 8
    rows = int(torch.randint(1, 30, ()))
    index = torch.randint(0, rows, shape[: at + 1]).sort(-1).values
    index[..., -1] = rows - 1
    counts = torch.zeros(*index.shape[:-1], rows, dtype=torch.long)
    counts.scatter_add_(-1, index, torch.ones_like(index))
    indptr = torch.cat([torch.zeros_like(counts[..., :1]), counts.cumsum(-1)], -1)
    src = src.to(dtype)
    tensors = {"src": src, "index": index, "indptr": indptr}
    if device == "cuda":
        tensors |= same_in_any_order(src, at)
    tensors["any"] = torch.randint(0, rows, shape)
    tensors["any"].flatten()[0] = rows - 1
    tensors["values"] = torch.randn([*shape[:at], rows, *shape[at + 1 :]]).mul(8).to(dtype)
    tensors["dim"] = torch.tensor(at)
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def same_in_any_order(src: torch.Tensor, dim: int) -> dict[str, torch.Tensor]:
    """Makes values in place of src: some to take least and greatest values of, some to add up, some
    to multiply."""
    factor = 8 if src.is_floating_point() else 1000
    distinct = torch.randn(4096).mul(factor).to(src.dtype).unique()
    distinct = distinct[torch.randperm(len(distinct))][: src.shape[dim]]
    tensors = {"src": distinct[torch.rand(src.shape).argsort(dim)]}
    tensors["added"] = torch.randint(-4, 5, src.shape).to(src.dtype)
    if src.is_floating_point():
        signs = torch.randint(0, 2, src.shape) * 2 - 1
        tensors["multiplied"] = torch.ldexp(signs.double(), torch.randint(-1, 2, src.shape))
        tensors["multiplied"] = tensors["multiplied"].to(src.dtype)
    return tensors


def taken(name: str, case: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the values that a function takes: any values, if its additions have an order."""
    if name.startswith("gather"):
        return case["values"]
    reduce = "" if name.endswith("csr") else name.split("_")[1]
    special = {"sum": "added", "mean": "added", "mul": "multiplied"}.get(reduce, "src")
    return case.get(special, case["src"])


def calls(module: Any, case: dict[str, torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Returns every function of upstream's kernels on a case; rows that it names are not looked
    for."""
    index, indptr, dim = case["index"], case["indptr"], int(case["dim"])
    rows = int(case["rows"]) if "rows" in case else None
    by_name: dict[str, Callable[[], Any]] = {}
    for reduce in ("sum", "mean", "min", "max"):
        csr, coo = (getattr(module, f"segment_{reduce}_{kind}") for kind in ("csr", "coo"))
        by_row, by_index = (taken(f"segment_{reduce}_{kind}", case) for kind in ("csr", "coo"))
        by_name[f"segment_{reduce}_csr"] = lambda f=csr, src=by_row: f(src, indptr)
        by_name[f"segment_{reduce}_coo"] = lambda f=coo, src=by_index: f(src, index, None, rows)
    for reduce in ("sum", "mean", "mul", "min", "max"):
        any_order, src = getattr(module, f"scatter_{reduce}"), taken(f"scatter_{reduce}", case)
        by_name[f"scatter_{reduce}"] = lambda f=any_order, src=src: f(
            src, case["any"], dim, None, rows
        )
    by_name["gather_csr"] = lambda: module.gather_csr(case["values"], indptr)
    by_name["gather_coo"] = lambda: module.gather_coo(case["values"], index)
    return by_name


def named(calls: dict[str, Callable[[], Any]], only: list[str]) -> list[str]:
    """Returns the functions whose names contain one of the words; all, without words."""
    return [name for name in calls if not only or any(word in name for word in only)]


def difference(name: str, ours: Any, theirs: Any) -> str | None:
    """Returns a description of the difference, or None."""
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    for i, (a, b) in enumerate(pairs):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{name}[{i}]: {a.dtype} {tuple(a.shape)}, {b.dtype} {tuple(b.shape)}"
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return f"{name}[{i}]: {int((a != b).sum())} of {a.numel()} values differ"
    return None


def gradient(name: str, call: Callable[[], Any], case: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the gradient of a function's values, for some gradient of its result."""
    leaf = taken(name, case).requires_grad_()
    results = call()
    result = results[0] if isinstance(results, tuple) else results
    weights = torch.linspace(-2, 2, result.numel())
    if result.is_cuda:  # added up in no order
        weights = torch.arange(result.numel()) % 9 - 4
    weights = weights.reshape(result.shape).to(result)
    (of_leaf,) = torch.autograd.grad(result, leaf, weights)
    leaf.requires_grad_(False)
    return of_leaf


def compare(device: str, dtypes: list[str], only: list[str]) -> int:
    """Prints the differences and the number of compared results; returns the number that differ."""
    counted, wrong = 0, 0
    for dtype in (getattr(torch, name) for name in dtypes):
        for seed in range(24):
            case = random_case(seed, dtype, device)
            ours, theirs = calls(scatter_pack, case), calls(torch_scatter, case)
            for name in named(ours, only):
                pairs = [(name, ours[name](), theirs[name]())]
                if dtype.is_floating_point:
                    both = (gradient(name, calls[name], case) for calls in (ours, theirs))
                    pairs.append((f"{name}, its gradient", *both))
                for what, our, their in pairs:
                    counted += 1
                    if problem := difference(what, our, their):
                        wrong += 1
                        print(f"{dtype}, case {seed}: {problem}")
    print(f"{counted} results and gradients, {counted - wrong} the same bit for bit")
    return wrong


def without_waiting(case: dict[str, torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Returns calls of gather_csr, ours and upstream's, with a result whose extent nobody asks the
    GPU for."""
    values, indptr, E = case["values"], case["indptr"], case["src"].shape[0]
    out, rank = torch.empty_like(case["src"]), values.dim()
    call = scatter_pack.segment._GATHER_CSR[rank]
    return {
        "here": lambda: call((values, indptr), (E, False), (), None, (), True),
        "upstream": lambda: torch_scatter.gather_csr(values, indptr, out),
    }


def timed_case(elements: int, rows: int, columns: int, device: str) -> dict[str, torch.Tensor]:
    """Makes an index that ascends and one in no order, over rows of a size."""
    src = (
        torch.randn(elements, columns).squeeze(-1)
        if columns == 1
        else torch.randn(elements, columns)
    )
    index = torch.randint(0, rows, (elements,)).sort().values
    index[-1] = rows - 1
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), index.bincount().cumsum(0)])
    case = {
        "src": src, "index": index, "indptr": indptr, "dim": torch.tensor(0),
        "any": index[torch.randperm(elements)].reshape(-1, *[1] * (src.dim() - 1)),
        "values": torch.randn(rows, *src.shape[1:]), "rows": torch.tensor(rows),
    }  # fmt: skip
    case["any"] = case["any"].expand_as(src)
    return {name: tensor.to(device) for name, tensor in case.items()}


def times(device: str, only: list[str]) -> bool:
    """Prints a table for each function: what a call on 8 values costs the host, and the times of
    large inputs, on a GPU without gaps between launches if a CUDA graph holds the call; of
    gather_csr also with an extent that no one asks the GPU for. Returns whether results agree."""
    on, good = torch.device(device), True
    shapes = ((8, 4, 1), (1_000_000, 50_000, 1), (200_000, 10_000, 64))
    cases = {f"{e} x {c} -> {r}": timed_case(e, r, c, device) for e, r, c in shapes}
    modules = {"here": scatter_pack, "upstream": torch_scatter}
    both = {
        size: {who: calls(module, case) for who, module in modules.items()}
        for size, case in cases.items()
    }
    small, *large = both
    for name in named(both[small]["here"], only):
        cells = [(size, {who: each[name] for who, each in both[size].items()}) for size in both]
        good &= print_times(f"{name}, the host", cells[:1], on, host=True)
        good &= print_times(name, cells[1:], on, graphs=True)
        if name == "gather_csr" and device != "cpu":
            waiting = [(size, without_waiting(cases[size])) for size in large]
            good &= print_times(f"{name} of a known extent", waiting, on, graphs=True)
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--only", nargs="+", default=[], help="functions with a word in their name")
    options = parser.parse_args()
    wrong = compare(options.device, options.dtypes, options.only)
    agree = options.no_times or times(options.device, options.only)
    raise SystemExit(1 if wrong or not agree else 0)
