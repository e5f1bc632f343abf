"""A small report with everything that a page shows."""

from types import SimpleNamespace

from codegen.core.manifest import Kernel
from codegen.core.ptxas_rows import Row
from tests.ptx_report.project import symbol
from tools.ptx_report.report import Report


def example():
    """Eight kernels of ours over d_head, causal and B_r, and a foreign one with a hostile name."""
    rows, known = [], {}
    for d_head in (64, 128):
        for causal in (False, True):
            for b_r in (64, 128):
                tokens = [f"d{d_head}", *(["causal"] if causal else []), f"r{b_r}"]
                key = f"flash_forward.sm80.bf16-{'-'.join(tokens)}"
                big = d_head == b_r == 128
                spills = (16 if causal else 32) if big else 0
                registers = 255 if big else {64: 96, 128: 128}[b_r] + (40 if d_head == 128 else 0)
                if d_head == 128 and b_r == 64:
                    registers = 168
                known[key] = Kernel(
                    key=key,
                    parameters={"d_head": d_head, "causal": causal, "B_r": b_r},
                    derived={"threads": 128, "smem_bytes": 2 * d_head * (b_r + 128)},
                    symbol="",
                    file="flash_forward/sm80_00.cu",
                )
                rows.append(
                    Row(
                        symbol(key),
                        arch="sm_80",
                        stack_frame=spills,
                        spill_stores=spills,
                        spill_loads=spills,
                        used_registers=registers,
                        barriers=1,
                        warnings=("Registers are spilled to local memory",) if spills else (),
                        source="flash_forward/sm80_00.cu",
                        line=2,
                        toolchain="nvcc 13.0.88",
                    )
                )
    rows.append(
        Row(
            "hostile",
            name="<b>&amp;</b><script>alert(1)</script>",
            arch="sm_90",
            incomplete="cut after 'Compiling entry function'",
            c75=("C7510",),
            source="</script>",
        )
    )
    return Report(rows, inputs=["a.log"], manifest=SimpleNamespace(kernels=known))
