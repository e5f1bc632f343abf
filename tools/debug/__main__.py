"""Where a kernel of flash_forward diverges from its simulation, tensor by tensor.

    kernelmint debug KERNEL SEQ_IN_B_R [-r|--range] [--head H]... [--out DIR]

Runs the block-by-block simulation in PyTorch, runs the kernel's traced twin on the same inputs,
writes every intermediate of both, and names the first block, tensor and element that diverge.
docs/debugging.md has the whole of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch

import runtime
from runtime import KernelInfo

from ..oracle import oracle
from ..selection import FAMILY, select
from . import files, twin
from .divergence import Rows, first_divergence
from .inputs import Shape, make_inputs
from .record import STEP
from .trace import simulated, softmax_form, traced


def find_kernel(name: str) -> KernelInfo:
    """The kernel of a key or short form, or the one of that number among what KERNELS selects."""
    if not name.isdigit():
        return select(name).kernels[0]
    chosen = select()
    if int(name) >= len(chosen.kernels):
        last = len(chosen.kernels) - 1
        raise ValueError(f"{chosen.description}: there are kernels 0 to {last}, not {name}")
    return chosen.kernels[int(name)]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("kernel")
@click.argument("seq_in_b_r", type=click.IntRange(1))
@click.option("-r", "--range", "counting", is_flag=True, help="q counts up, k = -q, v = q.")
@click.option("--seed", default=0, show_default=True, help="Of the normal inputs.")
@click.option("--heads", type=click.IntRange(1), help="Query heads (default: as --head needs).")
@click.option("--kv-heads", type=click.IntRange(1), help="Key heads (default: as query heads).")
@click.option("--head", "chosen_heads", type=click.IntRange(0), multiple=True, help="Default: 0.")
@click.option(
    "--query-block", "chosen_blocks", type=click.IntRange(0), multiple=True, help="Default: all."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("debug"),
    show_default=True,
    help="The folder for what is written.",
)
def main(
    kernel: str,
    seq_in_b_r: int,
    counting: bool,
    seed: int,
    heads: int | None,
    kv_heads: int | None,
    chosen_heads: tuple[int, ...],
    chosen_blocks: tuple[int, ...],
    out: Path,
) -> None:
    """Compare KERNEL with its simulation on SEQ_IN_B_R * B_r queries and as many keys.

    KERNEL is a key, a short form, or a number among the kernels that the variable KERNELS selects.
    """
    chosen_heads = tuple(dict.fromkeys(chosen_heads or (0,)))
    heads = heads or max(chosen_heads) + 1
    try:
        info = twin.find(find_kernel(kernel))
        if not info.available:
            raise ValueError(f"{info.key} cannot run here: {info.reason}")
        parameters = info.parameters
        blocks = tuple(dict.fromkeys(chosen_blocks or range(seq_in_b_r)))
        if max(blocks) >= seq_in_b_r:
            raise ValueError(f"--query-block {max(blocks)}: there are {seq_in_b_r}, from 0")
        if max(chosen_heads) >= heads:
            raise ValueError(f"--head {max(chosen_heads)}: there are {heads}, from 0")
        if heads % (kv_heads or heads):
            raise ValueError(f"--kv-heads {kv_heads} does not divide the {heads} query heads")
        B_r = parameters["B_r"]
        seq_len = seq_in_b_r * B_r
        shape = Shape(1, seq_len, heads, kv_heads or heads)
        q, k, v = make_inputs(info, shape, counting=counting, seed=seed)
    except (ValueError, KeyError, runtime.TargetUnavailable) as error:
        raise click.UsageError(str(error)) from None

    click.echo(
        f"{info.key}: q {list(q.shape)}, k and v {list(k.shape)}, "
        f"{'counting' if counting else f'normal, seed {seed}'}"
    )
    places = [(head, block) for head in chosen_heads for block in blocks]
    expected = {
        (head, block): simulated(q, k, v, parameters, head, block) for head, block in places
    }
    run = traced(runtime.kernel(info.key), q, k, v)
    actual = {
        place: list(run.steps(*place, [s.block for s in steps if s.name == "Q"]))
        for place, steps in expected.items()
    }
    attention = oracle(FAMILY)
    reference = attention(q.cpu(), k.cpu(), v.cpu(), causal=parameters["causal"])
    rows = torch.cat([torch.arange(i * B_r, (i + 1) * B_r) for i in blocks])
    ours = "debug_cuda" if info.is_cuda else "debug_cpu"
    for name, sides in (("debug_pt", expected), (ours, actual)):
        whole = {}
        for head in chosen_heads:
            finals = [sides[head, block][-1].value for block in blocks]
            whole[head, "O_full"] = torch.cat(finals)
            whole[head, "O_ref"] = reference[0, rows, head]
        files.write(out, name, sides, whole)
        click.echo(f"wrote {out / name}.txt and .npz")

    divergences = []
    for place in places:
        found = first_divergence(
            actual[place],
            expected[place],
            parameters,
            Rows.of(parameters, place[1], seq_len, seq_len),
            fused=softmax_form(parameters)["fused"],
            head=place[0],
            query_block=place[1],
        )
        if found is None:
            head, block = place
            steps = len(expected[place]) // len(STEP)
            click.echo(f"head {head}, query block {block}: agrees at {steps} blocks of keys")
        else:
            click.echo(str(found))
            divergences.append(found)
    for head in chosen_heads:
        o, o_ref = run.o[0, rows, head].double(), reference[0, rows, head]
        click.echo(f"head {head}: greatest |O_full - O_ref| {(o - o_ref).abs().max():.2e}")
    if divergences:
        click.echo(f"the kernel diverges from its simulation first at {divergences[0]}")
        sys.exit(1)
    click.echo("the kernel does as its simulation")


if __name__ == "__main__":
    main()
