#!/bin/bash
# Bits and times of float beside upstream's build, which it makes, on a machine that may have no
# network: bash times_on_gpu.sh [words in functions' names …]
#
# Needs: kernelmint and scikit-build-core installed, a PyTorch with CUDA, nvcc, cmake, ninja, and
# the source distribution in $KERNELMINT_SOURCES (kernelmint sources --to sources). Both builds run
# at once, in $WORK if that is set, and are kept there: a minute on four cores, then half a minute
# of the GPU.
set -e
cd "$(dirname "$0")"
KERNELMINT_SOURCES=$(realpath "${KERNELMINT_SOURCES:-sources}")
export KERNELMINT_SOURCES
work=$(realpath -m "${WORK:-$(mktemp -d)}")
mkdir -p "$work/pack" "$work/theirs" "$work/ours"
cp compare.py upstream_build.py "$work" # not beside scatter_pack's source, which would be imported
cp -r CMakeLists.txt README.md pyproject.toml kernel_specs scatter_pack "$work/pack"
cd "$work"
export PYTHONPATH=$work/ours:$work/theirs${PYTHONPATH:+:$PYTHONPATH}
is_there() { python -c "import $1" 2>/dev/null; }
if ! is_there torch_scatter; then
  archive=$KERNELMINT_SOURCES/torch_scatter-2.1.2.tar.gz
  python upstream_build.py "$archive" theirs >theirs.log 2>&1 &
fi
if ! is_there scatter_pack._pack; then
  (cd pack && kernelmint regenerate --where "target == 'sm80' and dtype == 'f32'" &&
    python -m pip install -q --no-build-isolation --no-deps --no-index --target "$work/ours" --upgrade .)
fi
wait
is_there torch_scatter || { tail -30 theirs.log; exit 1; }
python compare.py --device cuda --dtypes float ${1:+--only "$@"}
