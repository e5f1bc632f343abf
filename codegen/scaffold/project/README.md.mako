# ${name}

Kernels built with Kernelmint: a C++/CUDA template and two YAML files a family, below
`kernel_specs/`.

    python -m venv .venv && . .venv/bin/activate
    pip install -e ".[test]"
    pytest

| do | with |
|---|---|
| edit a template | `pip install -e .` again: ninja compiles what changed |
| edit a spec | `kernelmint regenerate`, then the same |
| list the kernels | `kernelmint list`, `kernelmint info` |
| see registers and spills | `ptx-report --installed` |
| compare them with a baseline | `ptx-report --installed --baselines kernel_specs --update-baseline`, later `--check` |
| add a family | `kernelmint new NAME`, `kernelmint regenerate`, `pip install -e .` |
| make a wheel | `pip wheel . --no-deps`: one for every Python and every PyTorch |
| compare a wheel with its sources | `kernelmint verify FILE.whl` |

Without an nvcc on `PATH`, an isolated build takes PyPI's; `-C cmake.define.KERNELMINT_CUDA=OFF` builds only the CPU's kernels, and
`-C cmake.define.CMAKE_CUDA_ARCHITECTURES="80;90"` names the architectures to build for.
