#!/bin/bash
# What a GPU has to show, on a machine that may have no network, and a table of it.
#
# Needs: this package installed with its CUDA kernels, pytest, and bitsandbytes 0.50.2 on PYTHONPATH
# (its Python, libbitsandbytes_cpu.so and the library of the machine's CUDA suffice), the archive in
# $KERNELMINT_SOURCES (kernelmint sources --to sources).
cd "$(dirname "$0")" || exit 1
export KERNELMINT_SOURCES=${KERNELMINT_SOURCES:-$PWD/sources}
failed=0
table=()
run() { # the step's name, then its command; the table has the last line that says something
  local log status=right
  log=$(mktemp)
  echo "== $*"
  "${@:2}" 2>&1 | tee "$log"
  [ "${PIPESTATUS[0]}" = 0 ] || { failed=1; status=WRONG; }
  table+=("$(printf '%-16s %-6s %s' "$1" "$status" "$(grep -E ' (passed|bit for bit|right)' "$log" | tr '\n' ';')")")
}
log=$(mktemp)
BNB_TEST_DEVICE=cpu python upstream_tests.py >"$log" 2>&1 & # minutes, beside the rest
run "own tests" python -m pytest -q -p no:cacheprovider tests
run "verify" kernelmint verify bnb_pack
run "cuda, bits" python compare.py --device cuda
run "upstream's, cuda" env BNB_TEST_DEVICE=cuda python upstream_tests.py
run "cpu, bits" python compare.py
wait $!
run "upstream's, cpu" sh -c "cat $log; exit $?"
echo
printf '%s\n' "${table[@]}"
exit $failed
