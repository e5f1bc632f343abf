#!/bin/bash
# What a GPU has to show, on a machine that may have no network. Before, on one that has:
#
#     kernelmint sources --to sources
#     pip download -d wheels --no-deps …          # whatever the GPU's environment lacks
#
# Needs: this package installed with its CUDA kernels (KERNELMINT_SOURCES=$PWD/sources pip install
# --no-build-isolation .), pytest, ninja and nvcc, which build upstream's own kernels beside it.
cd "$(dirname "$0")" || exit 1
export KERNELMINT_SOURCES=${KERNELMINT_SOURCES:-$PWD/sources}
table=()
run() {
  local name=$1 begin=$SECONDS
  shift
  echo "== $*"
  if "$@"; then table+=("right  $((SECONDS - begin)) s  $name"); else table+=("WRONG  $((SECONDS - begin)) s  $name"); fi
}
run "what can run here" kernelmint info
run "tests" python -m pytest -q tests
run "upstream's tests of Adam" python upstream_tests.py
run "against the oracle" kernelmint verify apex_pack
run "upstream's machine code" python same_code.py
run "upstream's bits, and times" python compare.py
printf '%s\n' "${table[@]}"
[[ "${table[*]}" != *WRONG* ]]
