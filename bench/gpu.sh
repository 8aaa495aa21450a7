#!/usr/bin/env bash
# What `make gpu` runs once the package is built: GPU tests, memory checks, benchmarks. Logs and records go to $OUT, or to
# bench/results. Every part runs even if one before it failed; the exit status tells.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-bench/results}
mkdir -p "$out"
failed=()

part() {
  local name=$1
  shift
  echo "== $name: $*"
  # tee keeps the log; pipefail the command's status.
  "$@" 2>&1 | tee "$out/gpu-$name.log" || failed+=("$name")
}

device='import torch, lpkernels as lp
print(torch.__version__, torch.cuda.get_device_name(), lp.backends.status())
raise SystemExit(0 if lp.backends.status()["cuda"] == "available" else "backend cuda: " + lp.backends.status()["cuda"])'
part device "$python" -c "$device"
part tests "$python" -m pytest -q -m "(cuda or triton) and not slow" \
  --ignore=tests/oracles tests

if command -v compute-sanitizer >/dev/null; then
  # One small format under every layout, dtype and number of random bits: the sanitizer makes each launch slow.
  small="strides or dtype or draws or seed_on"
  for tool in memcheck racecheck initcheck; do
    part "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$python" -m pytest -q -p no:cacheprovider -m cuda -k "$small" tests/test_cuda.py
  done
  # Products of both backends: packing, tables, tiles at the edge, the redo of flagged tiles.
  part memcheck-products compute-sanitizer --tool memcheck --error-exitcode 1 \
    "$python" -m pytest -q -p no:cacheprovider \
    tests/test_cuda_products.py::TestOnDevice::test_hard_values_match_the_cpu \
    "tests/triton/test_training.py::test_layers_have_the_bits_of_the_reference[0]" \
    "tests/triton/test_training.py::test_layers_have_the_bits_of_the_reference[1]"
else
  echo "compute-sanitizer is not on PATH: no memory checks"
fi

part fp8-units "$python" -m bench.fp8_units --out "$out"
part bench "$python" -m bench.run --device cuda --out "$out"

if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
