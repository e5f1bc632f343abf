"""The clocks that times were taken at, where the machine tells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import torch

_QUERY = "clocks.sm,clocks.mem,temperature.gpu,power.draw"


def read(device: torch.device) -> dict[str, str]:
    """The clocks now: of a GPU as nvidia-smi has them, of a CPU that of its first processor;
    nothing where they cannot be read."""
    if device.type != "cuda":
        file = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
        return {"cpu kHz": file.read_text().strip()} if file.exists() else {}
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    properties = torch.cuda.get_device_properties(device)
    done = subprocess.run(
        [command, f"--id=GPU-{properties.uuid}", f"--query-gpu={_QUERY}", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        return {}
    values = done.stdout.strip().split(", ")
    return dict(zip(_QUERY.split(","), values, strict=False))
