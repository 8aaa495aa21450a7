#!/usr/bin/env bash
# What `make gpu` runs once the package is built: GPU tests, memory checks, kernels profiled, benchmarks. Logs and records go to
# $OUT, or to bench/results. Every part runs even if one before it failed; the exit status tells. With --dry-run it prints the
# parts, and why some would be left out, and runs none. PARTS="tests bench" runs these parts alone.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-bench/results}
dry=
[[ ${1:-} == --dry-run ]] && dry=1
failed=()

part() {
  local name=$1
  shift
  [[ -z ${PARTS:-} || " $PARTS " == *" $name "* ]] || return 0
  echo "== $name: $*"
  [[ $dry ]] && return
  # tee keeps the log; pipefail the command's status.
  "$@" 2>&1 | tee "$out/gpu-$name.log" || failed+=("$name")
}

# This says whether a tool is there, and what is left out if it is not.
has() {
  command -v "$1" >/dev/null && return
  echo "== $1 is not on PATH: $2"
  [[ $dry ]]
}

device='import torch, lpkernels as lp
state = lp.backends.status()["cuda"]
name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no device"
print(torch.__version__, name, lp.backends.status())
raise SystemExit(0 if state == "available" else "backend cuda: " + state)'
if [[ $dry ]]; then
  "$python" -c "$device" || echo "== no GPU run could pass here: tests would skip, benchmarks fail"
else
  mkdir -p "$out"
fi
part device "$python" -c "$device"
part tests "$python" -m pytest -q -m "(cuda or triton) and not slow" \
  --skip-missing-oracles tests

# The sanitizer makes each launch slow, so there are few and small ones: one format under every layout, dtype and number of
# random bits, scales and codes, and products of every family of kernels, with tables and without.
small="strides or dtype or draws or seed_on or every_mode or codes_of_blocks or names_the_first"
products=(
  "tests/backends/cuda/test_cuda_products.py::test_hard_values_match_the_cpu"
  "tests/backends/cuda/test_cuda_products.py::test_native_chunks_are_exact_where_their_sums_are"
  "tests/backends/triton/test_training.py::test_layers_have_the_bits_of_the_reference[0]"
  "tests/backends/triton/test_training.py::test_layers_have_the_bits_of_the_reference[1]"
)
if has compute-sanitizer "no memory checks"; then
  for tool in memcheck racecheck initcheck; do
    part "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$python" -m pytest -q -p no:cacheprovider -m cuda -k "$small" \
      tests/backends/cuda/test_cuda_elements.py
    part "$tool-products" compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$python" -m pytest -q -p no:cacheprovider "${products[@]}"
  done
fi

# What the cases of the benchmark should take on an H100, from the counts of machine code (docs/predictions.md); the benchmark
# below writes it beside what it measures. The profile says what the main kernels keep busy.
part prediction "$python" -m bench.predict.cases
if has ncu "no profile of the kernels"; then
  busy=sm__cycles_elapsed.avg,sm__inst_issued.avg.pct_of_peak_sustained_active
  for pipe in fma alu fp64 fp16 xu lsu; do
    busy+=,sm__inst_executed_pipe_$pipe.avg.pct_of_peak_sustained_active
  done
  busy+=,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active,dram__throughput.avg.pct_of_peak_sustained_elapsed
  part profile ncu --csv --metrics "$busy" --launch-count 400 \
    --kernel-name "regex:certified_kernel|exact_kernel|ordered_kernel|pack_operand_kernel|quantize" \
    "$python" -m bench.run --device cuda --backend cuda --filter "matmul|quantize_out" --seconds 0.01 \
    --out "$(mktemp -d)"
fi

part fp8-units "$python" -m bench.fp8_units --out "$out"
part bench "$python" -m bench.run --device cuda --out "$out"

if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
