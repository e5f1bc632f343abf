#!/bin/bash
# What a forward call costs the host, beside upstream's binding and its function, which this builds,
# on a machine that may have no network: bash call_on_gpu.sh
#
# Needs: kernelmint and scikit-build-core installed, a PyTorch with CUDA, nvcc, cmake, ninja, and
# the source distribution in $KERNELMINT_SOURCES (kernelmint sources --to sources). Both builds run
# at once, in $WORK if that is set, and are kept there: one kernel here, and of upstream its binding
# and one file; a minute or two.
set -e
cd "$(dirname "$0")"
KERNELMINT_SOURCES=$(realpath "${KERNELMINT_SOURCES:-sources}")
export KERNELMINT_SOURCES
work=$(realpath -m "${WORK:-$(mktemp -d)}")
export TORCH_EXTENSIONS_DIR=$work/theirs
mkdir -p "$work/pack" "$work/ours" "$work/theirs"
cp on_gpu.py upstream_tests.py "$work" # not beside flash_attn_pack's source, which would be imported
cp -r CMakeLists.txt README.md pyproject.toml kernel_specs flash_attn_pack "$work/pack"
ln -sfn pack/kernel_specs "$work/kernel_specs" # where on_gpu.py looks for the pin
cd "$work"
export PYTHONPATH=$work/ours${PYTHONPATH:+:$PYTHONPATH}
only=fwd_hdim64_bf16_sm80
if [ ! -e theirs/flash_attn_2_cuda/flash_attn_2_cuda.so ]; then
  PYTHONPATH=$work/pack:$PYTHONPATH python on_gpu.py --only $only build >theirs.log 2>&1 &
fi
if ! python -c "import flash_attn_pack._pack" 2>/dev/null; then
  kernels="family == 'flash_attn_forward' and dtype == bf16 and head_dim == 64 and not causal"
  (cd pack && kernelmint regenerate --where "$kernels" &&
    python -m pip install -q --no-build-isolation --no-deps --no-index --target "$work/ours" --upgrade .)
fi
wait
[ -e theirs/flash_attn_2_cuda/flash_attn_2_cuda.so ] || { tail -30 theirs.log; exit 1; }
python on_gpu.py calls
