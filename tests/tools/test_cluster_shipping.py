"""What is sent to the nodes of a cluster: specs and packs by their content, to where they never
were."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys

import pytest

from codegen.spec.load import load
from runtime.ondemand import packed, specs
from runtime.ondemand.cache import Cache, Dependencies, Entry, Roots
from tests.slow import slow_after
from tests.tools.test_tune import FILES, ROOT
from tools.cluster import shipping

CALL = """\
import pickle, sys, torch, runtime
from runtime.ondemand.kernels import cache
from tools.cluster import shipping
print(shipping.unpack_specs(pickle.load(sys.stdin.buffer), cache()))
x = torch.randn(3, 5)
y = runtime.kernel("tuned_rows.cpu.plain-w1")(x, out=torch.full_like(x, torch.nan))
assert torch.allclose(y.double(), 2 * x.double() + 1, rtol=1e-6, atol=1e-6)
"""


@pytest.mark.parametrize("name", slow_after(1, ["kernel_specs", "mine"]))
def test_a_family_is_sent_with_what_its_build_names(tmp_path, name):
    here = tmp_path / "here"
    folder = here / name / "tuned_rows"
    folder.mkdir(parents=True)
    files = {
        **FILES,
        "cpu.yaml": FILES["cpu.yaml"] + "build: {include: [../third_party]}\n",
        "cpu.h": FILES["cpu.h"]
        .replace('#include "launch.h"', '#include <two.h>\n#include "launch.h"')
        .replace("2 * x[j]", "two * x[j]"),
        "../other.txt": "beside the family",
        "../../third_party/two.h": "constexpr float two = 2;\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    (family,) = load([folder.parent])
    (source,) = specs.find(folder)
    sent = shipping.collect(source, family)
    assert sent.folder == f"{name}/tuned_rows"
    assert "third_party/two.h" in sent.files
    assert ("kernel_specs/other.txt" in sent.files) == (name == "kernel_specs")
    shutil.rmtree(here)
    done = subprocess.run(
        [sys.executable, "-c", CALL], cwd=ROOT, input=pickle.dumps(sent), capture_output=True,
        env={**os.environ, "KERNELMINT_CACHE_DIR": str(tmp_path / "there")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == str(tmp_path / "there/specs" / sent.id / sent.folder)


def test_a_pack_that_is_sent_is_found_as_one_that_was_built_there(tmp_path):
    folder = tmp_path / "here/pack"
    (folder / "python").mkdir(parents=True)
    (folder / "python/face.py").write_text("face = 1\n")
    (folder / "pack.json").write_text("{}")
    there, roots = Cache(tmp_path / "there"), Roots({"specs": tmp_path})
    (tmp_path / "source.h").write_text("int a;\n")
    names = Dependencies(files=("specs:source.h",))
    made = folder.rename(folder.with_name(there.identify("request", names, roots)))
    sent = packed.pack_up("request", Entry(made, names))
    for _ in range(2):  # a second time it is there already
        found = packed.unpack(pickle.loads(pickle.dumps(sent)), there)
        assert (found.folder / "python/face.py").read_text() == "face = 1\n"
    assert there.find("request", roots) == found
    (tmp_path / "source.h").write_text("int b;\n")
    assert there.find("request", roots) is None
