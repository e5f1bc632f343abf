"""tools/build/environment.py: what `make` says while it fills the virtual environment."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_installed_is_said_as_it_is(tmp_path):
    wheel = tmp_path / "nothing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "nothing-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    script = (
        "import runpy\n"
        "install = runpy.run_path('tools/build/environment.py')['pip_install']\n"
        f"install('--no-index', '--target', {str(tmp_path / 'site')!r}, {str(wheel)!r})\n"
        "install('--no-index', 'no-such-thing')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    said = ["  Installing collected packages: nothing", "  Successfully installed nothing-1.0"]
    assert done.stdout.splitlines() == said
    assert done.returncode == 1
    assert "No matching distribution found for no-such-thing" in done.stderr
    assert "installing the requirements failed" in done.stderr
