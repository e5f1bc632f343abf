"""A comparison of a kernel of flash_backward with its simulation, tensor by tensor.

    kernelmint debug KERNEL SEQ_IN_B_R [--kv-head H]... [--key-block J]... [--out DIR]

Runs the simulation in PyTorch, block of keys by block of keys, runs the kernel's traced twin on the
same inputs, writes every intermediate of both, and names the first step, tensor and element that
diverge. docs/debugging.md has the whole of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from kernelmint.tools.comparison import Difference
from kernelmint.tools.debug import twin
from torch import Tensor

import runtime
from runtime import KernelInfo
from runtime.operators import DTYPES

from ...reference import GradientIntermediate as Step
from ...reference import attention, attention_backward, simulate_backward
from ...tools import files
from .divergence import STEP, Judge

GRADIENTS = ("dq", "dk", "dv")


@dataclass(frozen=True)
class Inputs:
    """The inputs of a call with one batch entry, on the CPU; o and lse are the forward's."""

    dout: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    lse: Tensor

    @classmethod
    def random(
        cls, parameters: Mapping[str, Any], length: int, heads: int, kv_heads: int, seed: int
    ) -> Inputs:
        """Makes normal inputs, as many keys as queries."""
        generator = torch.Generator().manual_seed(seed)
        dout, q, k, v = (
            torch.randn(1, length, n, parameters["d_head"], generator=generator).to(
                DTYPES[parameters["dtype"]]
            )
            for n in (heads, heads, kv_heads, kv_heads)
        )
        o, lse = attention(q, k, v, causal=parameters["causal"], return_lse=True)
        return cls(dout, q, k, v, o.to(q.dtype), lse.float())

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Returns the inputs in the order of the call."""
        return self.dout, self.q, self.k, self.v, self.o, self.lse

    @property
    def group(self) -> int:
        """Returns how many heads of queries share a head of keys."""
        return self.q.shape[2] // self.k.shape[2]


@dataclass(frozen=True)
class Divergence:
    """The first tensor of a block of keys that differs, in the order in which the kernel makes
    them; head and query_block are -1 after the steps, and key_block is of dq."""

    kv_head: int
    key_block: int
    step: Step
    difference: Difference

    def __str__(self) -> str:
        """Returns one line: step, tensor, element, and what stands there."""
        d, step = self.difference, self.step
        where = [f"key head {self.kv_head}"]
        where += [f"key block {self.key_block}"] if self.key_block >= 0 else []
        where += [f"head {step.head}, query block {step.query_block}"] if step.head >= 0 else []
        what = f"{', '.join(where)}: {step.name}"
        if d.first is None:
            return f"{what}: {d.problem}"
        return f"{what}, {d.first}; {d.beyond} of {d.compared} elements differ"


def simulated(inputs: Inputs, info: KernelInfo, kv_head: int, key_block: int) -> list[Step]:
    """Returns every intermediate of a block of keys in fp64, in the kernel's order of steps; heads
    are counted among all.

    The CPU's kernels, and deterministic ones under the mask if heads share no keys, walk from the
    first queries to the last; the others from the last to the first.
    """
    p, first = info.parameters, kv_head * inputs.group
    heads = slice(first, first + inputs.group)
    steps = simulate_backward(
        inputs.dout[0, :, heads],
        inputs.q[0, :, heads],
        inputs.k[0, :, kv_head],
        inputs.v[0, :, kv_head],
        inputs.o[0, :, heads],
        inputs.lse[0, heads],
        B_r=p["B_r"],
        B_c=p["B_c"],
        key_block=key_block,
        causal=p["causal"],
        from_last=info.target != "cpu"
        and not (p["causal"] and p["deterministic"] and inputs.group == 1),
    )
    return [step._replace(head=first + step.head) if step.head >= 0 else step for step in steps]


class Sides:
    """The intermediates of simulation and kernel on one input, by head and block of keys; after
    them, as block -1, dq of the heads that share the keys.

    `trace` is the kernel's, by name; `gradients` are dq, dk and dv.
    """

    def __init__(
        self,
        info: KernelInfo,
        inputs: Inputs,
        gradients: tuple[Tensor, ...],
        trace: Mapping[str, Tensor],
        kv_heads: tuple[int, ...],
        key_blocks: tuple[int, ...],
    ) -> None:
        """Runs the simulation."""
        self.info, self.inputs = info, inputs
        self.gradients, self.trace = dict(zip(GRADIENTS, gradients, strict=True)), trace
        self.expected: dict[tuple[int, int], list[Step]] = {}
        causal, scale = info.parameters["causal"], inputs.q.shape[3] ** -0.5
        reference = attention_backward(*inputs.tensors, scale=scale, causal=causal)
        self.reference = dict(zip(GRADIENTS, reference, strict=True))
        everything = range(math.ceil(inputs.k.shape[1] / info.parameters["B_c"]))
        for kv_head in kv_heads:
            for block in key_blocks:
                self.expected[kv_head, block] = simulated(inputs, info, kv_head, block)
            if set(key_blocks) >= set(everything):
                self.expected[kv_head, -1] = self._query_gradients(kv_head, scale)

    def _query_gradients(self, kv_head: int, scale: float) -> list[Step]:
        """Returns dq of all blocks of queries: the sum over all blocks of keys."""
        parameters, group = self.info.parameters, self.inputs.group
        blocks = math.ceil(self.inputs.q.shape[1] / parameters["B_r"])
        shape = (parameters["B_r"], parameters["d_head"])
        sums = {
            (head, block): torch.zeros(shape, dtype=torch.float64)
            for head in range(kv_head * group, (kv_head + 1) * group)
            for block in range(blocks)
        }
        for (of, _), steps in self.expected.items():
            for step in steps:
                if of == kv_head and step.name == "dQ":
                    sums[step.head, step.query_block] += scale * step.value
        return [Step(*place, "dq", value) for place, value in sums.items()]

    def actual(self, kv_head: int, key_block: int, step: Step) -> Tensor:
        """Returns the kernel's tensor of the simulation's step; rows past the last are 0."""
        p = self.info.parameters
        if step.name in STEP:
            return self.trace[step.name][0, step.head, step.query_block, key_block]
        queries = step.name == "dq"
        rows = p["B_r"] if queries else p["B_c"]
        first = rows * (step.query_block if queries else key_block)
        head = step.head if queries else kv_head
        tile = self.gradients[step.name][0, first : first + rows, head]
        return torch.cat([tile, tile.new_zeros(rows - len(tile), tile.shape[1])])

    def write(self, out: Path) -> None:
        """Writes the files of both sides, below `out`."""
        ours = "debug_cuda" if self.info.is_cuda else "debug_cpu"
        for name, is_ours in (("debug_pt", False), (ours, True)):
            files.write(out, name, self._named(is_ours))
            click.echo(f"wrote {out / name}.txt and .npz")

    def _named(self, is_ours: bool) -> Iterator[tuple[str, Tensor]]:
        for (kv_head, block), steps in self.expected.items():
            place = f"key_head{kv_head}/" + (f"key{block}/" if block >= 0 else "")
            for step in steps:
                value = self.actual(kv_head, block, step) if is_ours else step.value
                of = f"head{step.head}/query{step.query_block}/" if step.head >= 0 else ""
                yield f"{place}{of}{step.name}", value
        for name, reference in self.reference.items():
            yield f"{name}_full", self.gradients[name] if is_ours else reference

    def compare(self) -> list[Divergence]:
        """Says of each block of keys whether both sides agree, and returns where they do not."""
        inputs, divergences = self.inputs, []
        lengths, largest = (inputs.q.shape[1], inputs.k.shape[1]), float(inputs.o.abs().max())
        judges: dict[int, Judge] = {}
        for (kv_head, block), steps in self.expected.items():
            scale = inputs.q.shape[3] ** -0.5
            new = Judge(self.info.parameters, lengths, scale, largest)
            judge, first = judges.setdefault(kv_head, new), None
            judge.begin_keys(block)
            for step in steps:
                mine = self.actual(kv_head, block, step)
                difference = judge.compare(step.name, mine, step.value, step.head, step.query_block)
                is_nothing = difference.compared == 0 and math.isnan(difference.max_abs)
                if first is None and not (difference.passed or is_nothing):
                    first = Divergence(kv_head, block, step, difference)
            if first is not None:
                divergences.append(first)
                click.echo(str(first))
            elif block >= 0:
                count = len(steps) // len(STEP)
                click.echo(f"key head {kv_head}, key block {block}: agrees at {count} steps")
            else:
                click.echo(f"key head {kv_head}: dq agrees")
        for name, reference in self.reference.items():
            error = (self.gradients[name].double() - reference).abs().max()
            click.echo(f"greatest |{name} - reference| {error:.2e}")
        return divergences


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("kernel")
@click.argument("seq_in_b_r", type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True, help="Of the normal inputs.")
@click.option("--heads", type=click.IntRange(1), help="Query heads (default: as key heads).")
@click.option("--kv-heads", type=click.IntRange(1), help="Key heads (default: as --kv-head needs).")
@click.option("--kv-head", "chosen", type=click.IntRange(0), multiple=True, help="Default: 0.")
@click.option(
    "--key-block", "chosen_blocks", type=click.IntRange(0), multiple=True, help="Default: all."
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
    seed: int,
    heads: int | None,
    kv_heads: int | None,
    chosen: tuple[int, ...],
    chosen_blocks: tuple[int, ...],
    out: Path,
) -> None:
    """Compares KERNEL with its simulation on SEQ_IN_B_R * B_r queries and as many keys.

    KERNEL is a key, in a set or not, or a number among the kernels that the variable KERNELS
    selects. Its traced twin is built if no pack holds it.
    """
    chosen = tuple(dict.fromkeys(chosen or (0,)))
    kv_heads = kv_heads or max(chosen) + 1
    heads = heads or kv_heads
    try:
        info = twin.find(kernel)
        if not info.available:
            raise ValueError(f"{info.key} cannot run here: {info.reason}")
        length = seq_in_b_r * info.parameters["B_r"]
        all_blocks = math.ceil(length / info.parameters["B_c"])
        blocks = tuple(dict.fromkeys(chosen_blocks or range(all_blocks)))
        if max(blocks) >= all_blocks:
            raise ValueError(f"--key-block {max(blocks)}: there are {all_blocks}, from 0")
        if max(chosen) >= kv_heads:
            raise ValueError(f"--kv-head {max(chosen)}: there are {kv_heads}, from 0")
        if heads % kv_heads:
            raise ValueError(f"--kv-heads {kv_heads} does not divide the {heads} query heads")
        inputs = Inputs.random(info.parameters, length, heads, kv_heads, seed)
        out.mkdir(parents=True, exist_ok=True)
    except (ValueError, KeyError, runtime.TargetUnavailable, runtime.BuildError) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}") from None

    click.echo(
        f"{info.key}: q {list(inputs.q.shape)}, k and v {list(inputs.k.shape)}, normal, seed {seed}"
    )
    device = torch.device("cuda" if info.is_cuda else "cpu")
    poisoned = tuple(torch.full_like(t, math.nan).to(device) for t in inputs.tensors[1:4])
    given = (t.to(device) for t in inputs.tensors)
    gradients, trace = runtime.kernel(info.key).trace(*given, out=poisoned)
    of_kernel = {name: tensor.cpu() for name, tensor in trace.items()}
    sides = Sides(info, inputs, tuple(t.cpu() for t in gradients), of_kernel, chosen, blocks)
    sides.write(out)
    if divergences := sides.compare():
        click.echo(f"the kernel diverges from its simulation first at {divergences[0]}")
        sys.exit(1)
    click.echo("the kernel does as its simulation")


if __name__ == "__main__":
    main()
