"""Where a kernel of flash_forward diverges from its simulation, tensor by tensor.

    kernelmint debug KERNEL SEQ_IN_B_R [-r|--range] [--head H]... [--out DIR]

Runs the block-by-block simulation in PyTorch, runs the kernel's traced twin on the same inputs,
writes every intermediate of both, and names the first block, tensor and element that diverge.
docs/debugging.md has the whole of it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import torch
from kernelmint.tools.debug import twin
from kernelmint.tools.problem import Case, of_case
from torch import Tensor

import runtime
from runtime import KernelInfo

from ...reference import attention
from ...tools import files
from .divergence import Divergence, Rows, first_divergence
from .trace import STEP, Step, simulated, softmax_form, traced


class _Sides:
    """The intermediates of simulation and kernel on one input, by head and block of queries."""

    def __init__(
        self,
        info: KernelInfo,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: tuple[int, ...],
        blocks: tuple[int, ...],
    ) -> None:
        """Runs both."""
        self.info, self.heads, self.blocks, self.seq_len = info, heads, blocks, q.shape[1]
        self.expected = {
            place: simulated(q, k, v, info, *place) for place in itertools.product(heads, blocks)
        }
        run = traced(runtime.kernel(info.key), q, k, v)
        self.actual = {
            place: list(run.steps(*place, [s.block for s in steps if s.name == STEP[0]]))
            for place, steps in self.expected.items()
        }
        self.o = run.o  # [1, Sq, H, D], the kernel's
        self.reference = attention(q.cpu(), k.cpu(), v.cpu(), causal=info.parameters["causal"])

    @property
    def rows(self) -> Tensor:
        """Returns the rows of the chosen blocks of queries."""
        B_r = self.info.parameters["B_r"]
        return torch.cat([torch.arange(i * B_r, (i + 1) * B_r) for i in self.blocks])

    def write(self, out: Path) -> None:
        """Writes the files of both sides, below `out`."""
        ours = "debug_cuda" if self.info.is_cuda else "debug_cpu"
        for name, side in (("debug_pt", self.expected), (ours, self.actual)):
            files.write(out, name, self._named(side))
            click.echo(f"wrote {out / name}.txt and .npz")

    def _named(self, side: Mapping[tuple[int, int], list[Step]]) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors of one side: of each block of queries, then of each whole head."""
        for (head, query_block), steps in side.items():
            for step in steps:
                block = f"key{step.block}/" if step.block >= 0 else ""
                yield f"head{head}/query{query_block}/{block}{step.name}", step.value
        for head in self.heads:
            finals = [side[head, block][-1].value for block in self.blocks]
            yield f"head{head}/O_full", torch.cat(finals)
            yield f"head{head}/O_ref", self.reference[0, self.rows, head]

    def compare(self) -> list[Divergence]:
        """Says of each block of queries whether both sides agree, and returns where they do not."""
        parameters = self.info.parameters
        divergences = []
        for (head, block), expected in self.expected.items():
            divergence = first_divergence(
                self.actual[head, block],
                expected,
                parameters,
                Rows.of(parameters, block, self.seq_len, self.seq_len),
                fused=softmax_form(self.info)["fused"],
                head=head,
                query_block=block,
            )
            if divergence is None:
                steps = len(expected) // len(STEP)
                click.echo(f"head {head}, query block {block}: agrees at {steps} blocks of keys")
            else:
                click.echo(str(divergence))
                divergences.append(divergence)
        for head in self.heads:
            o, o_ref = self.o[0, self.rows, head].double(), self.reference[0, self.rows, head]
            click.echo(f"head {head}: greatest |O_full - O_ref| {(o - o_ref).abs().max():.2e}")
        return divergences


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
    metavar="DIR",
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
    """Compares KERNEL with its simulation on SEQ_IN_B_R * B_r queries and as many keys.

    KERNEL is a key or a short form, in a set or not, or a number among the kernels that the
    variable KERNELS selects. Its traced twin is built if no pack holds it.
    """
    chosen_heads = tuple(dict.fromkeys(chosen_heads or (0,)))
    blocks = tuple(dict.fromkeys(chosen_blocks or range(seq_in_b_r)))
    heads = heads or max(chosen_heads) + 1
    try:
        info = twin.find(kernel)
        if not info.available:
            raise ValueError(f"{info.key} cannot run here: {info.reason}")
        if max(blocks) >= seq_in_b_r:
            raise ValueError(f"--query-block {max(blocks)}: there are {seq_in_b_r}, from 0")
        if max(chosen_heads) >= heads:
            raise ValueError(f"--head {max(chosen_heads)}: there are {heads}, from 0")
        if heads % (kv_heads or heads):
            raise ValueError(f"--kv-heads {kv_heads} does not divide the {heads} query heads")
        length = seq_in_b_r * info.parameters["B_r"]
        sizes = {"B": 1, "Sq": length, "Sk": length, "H": heads, "Hk": kv_heads or heads}
        device = torch.device("cuda" if info.is_cuda else "cpu")
        problem = of_case(info, Case(sizes), device, counting=counting, seed=seed)
        q, k, v = (problem.tensors[name] for name in "qkv")
        out.mkdir(parents=True, exist_ok=True)
    except (ValueError, KeyError, runtime.TargetUnavailable, runtime.BuildError) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}") from None

    click.echo(
        f"{info.key}: q {list(q.shape)}, k and v {list(k.shape)}, "
        f"{'counting' if counting else f'normal, seed {seed}'}"
    )
    sides = _Sides(info, q, k, v, chosen_heads, blocks)
    sides.write(out)
    divergences = sides.compare()
    if divergences:
        click.echo(f"the kernel diverges from its simulation first at {divergences[0]}")
        sys.exit(1)
    click.echo("the kernel does as its simulation")


if __name__ == "__main__":
    main()
