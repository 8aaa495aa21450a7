// lpk_cuda_host: the functions of lpkernels._C for products on CUDA. Here the code of
// the kernels runs on the host, thread by thread. The module is for tests of the Python adapter;
// its pointers are those of host memory. Tests of certificates find theirs here, too.
#include "bindings_cuda.h"
#include "cuda/operands/pack_map.h"
#include "cuda/product/job.h"
#include "cuda/product/totals.h"
#include "cuda_run.h"

namespace lpk {
void register_certificate(pybind11::module_& module);
}  // namespace lpk

namespace lpk::cuda {
namespace {

void add_facts(float x, Facts* facts) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  *facts = merged(*facts, facts_of(bits));
}

// The last choice of run_product. By it tests see that kernels ran, and that their results stayed.
lpk_host::Ran last{Tier::kExact, false};

}  // namespace

void pack_operand(const PackArgs& a, void*) {
  const FusedRule rule = fused_rule(a.quantizer);
  for (int64_t g = 0; g < a.count; ++g) {
    for (int64_t step = 0; step < a.steps; ++step) {
      float* to = a.to + (g * a.steps + step) * a.padded;
      for (int64_t lane = 0; lane < a.padded; ++lane) {
        const int64_t at = g * a.batch + lane * a.lane_stride + step * a.step_stride;
        to[lane] = lane < a.lanes ? packed(a.from[at], rule) : 0.0f;
        add_facts(to[lane], a.facts);
      }
    }
  }
}

void frame(const FrameArgs& a, void*) {
  const FusedRule rule = fused_rule(a.quantizer);
  for (int64_t n = 0; n < a.images; ++n) {
    for (int64_t c = 0; c < a.channels; ++c) {
      for (int64_t place = 0; place < frame_places(a); ++place) {
        const Framed source = framed(a, place);
        float x;
        std::memcpy(&x, &kAbsent, sizeof x);
        if (source.inside) x = packed(a.from[n * a.steps[0] + c * a.steps[1] + source.at], rule);
        a.to[framed_at(a, n, c, place)] = x;
        add_facts(x, a.facts);
      }
    }
  }
}

int64_t scratch_bytes(const Sums& sums, const int64_t* accumulator) {
  return scratch_size(sums, accumulator_from(accumulator));
}

void multiply(const MultiplyArgs& args, void*) {
  Job job = job_from(args);
  if (args.sums.count == 0 || args.sums.m == 0 || args.sums.n == 0) return;
  job.fast_doubles = true;
  last = lpk_host::run_product(&job, args.scratch);
}

void add(const AddArgs& args, const int64_t* accumulator, void*) {
  const Accumulator acc = accumulator_from(accumulator);
  for (int64_t i = 0; i < args.rows * args.cols; ++i) args.total[i] = added(args, acc, i);
}

}  // namespace lpk::cuda

PYBIND11_MODULE(lpk_cuda_host, module) {
  lpk::register_cuda_products(module);
  lpk::register_certificate(module);
  // (number of the tier, whether all of its tiles were done again)
  module.def("last_tier", [] {
    return std::pair<int, bool>(static_cast<int>(lpk::cuda::last.tier), lpk::cuda::last.redone);
  });
}
