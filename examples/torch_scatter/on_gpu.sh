#!/bin/bash
# What a GPU has to show, on a machine that may have no network. Before, on one that has:
#
#     kernelmint sources --to sources && git clone -q https://github.com/rusty1s/pytorch_scatter upstream
#     pip download -d wheels --no-deps …          # whatever the GPU's environment lacks
#
# Needs: this package installed with its CUDA kernels (KERNELMINT_SOURCES=$PWD/sources pip install
# --no-build-isolation .), pytest; for bits and times beside upstream, its own build with CUDA
# (sources/torch_scatter-2.1.2.tar.gz: FORCE_CUDA=1 pip install --no-build-isolation --no-deps).
cd "$(dirname "$0")" || exit 1
export KERNELMINT_SOURCES=${KERNELMINT_SOURCES:-$PWD/sources}
failed=0
run() { echo "== $*"; "$@" || { failed=1; echo "== failed: $*"; }; }
run kernelmint info
run python -m pytest -q tests
run python upstream_tests.py --from upstream
run kernelmint verify scatter_pack
run ptx-report --installed --where "family == 'torch_scatter_segment_csr'"
if python -c "import torch_scatter" 2>/dev/null; then
  run python compare.py --device cuda
else
  echo "== left out: bits and times beside upstream: torch_scatter is not installed"
fi
exit $failed
