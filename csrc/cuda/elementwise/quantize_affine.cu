// Affine formats in four kernels. They write that there are no ends; find the ends of every slice;
// make every slice's line; and code all elements on their lines. Ends are least integers, so no
// order of the threads changes them.
#include "affine_map.h"
#include "elements.h"

namespace lpk::cuda {
namespace {

__global__ void forget_kernel(Ends* ends, int64_t slices) {
  for (int64_t s = grid_thread(); s < slices; s += grid_threads()) ends[s] = no_ends();
}

__device__ void join_ends(const Ends& mine, Ends* ends) {
  atomicMin(reinterpret_cast<long long*>(&ends->low), static_cast<long long>(mine.low));
  atomicMin(reinterpret_cast<long long*>(&ends->high), static_cast<long long>(mine.high));
}

// Groups of lanes take pieces g, g + G, ..., where G is the number of all groups.
template <int kLanes>
__global__ void ends_kernel(const __grid_constant__ SlicePieces pieces, Elements x, Ends* ends) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int64_t i = grid_thread() / kLanes; i < pieces.count(); i += grid_threads() / kLanes) {
    const SlicePiece piece = pieces.piece(i);
    Ends mine = ends_of(piece, lane, kLanes, x);
    for (int away = kLanes / 2; away > 0; away /= 2) {
      mine = joined(mine, {__shfl_xor_sync(0xffffffffu, mine.low, away),
                           __shfl_xor_sync(0xffffffffu, mine.high, away)});
    }
    if (lane == 0) join_ends(mine, ends + piece.slice);
  }
}

__global__ void lines_kernel(const Ends* ends, AffineLine<double>* lines, int64_t slices,
                             const __grid_constant__ AffineCodes codes) {
  for (int64_t s = grid_thread(); s < slices; s += grid_threads())
    lines[s] = line_between(ends[s], codes);
}

__global__ void codes_kernel(const __grid_constant__ SlicePieces pieces, int64_t count, Elements x,
                             const AffineLine<double>* lines, float* out,
                             const __grid_constant__ AffineCodes codes,
                             const __grid_constant__ Format integers,
                             const __grid_constant__ ElementRounding rule) {
  const uint64_t seed = rule.seed();
  for (int64_t i = grid_thread(); i < count; i += grid_threads()) {
    out[i] = affine_rounded(x(i), lines[pieces.slice_of(i)], codes, integers, rule.rounding,
                            rule.threshold(seed, i));
  }
}

}  // namespace

void affine_lines(const ScaledArgs& args, void* stream) {
  const SlicePieces pieces(args.sizes);
  const int64_t slices = pieces.sizes.length;
  const AffineCodes codes(args.quantizer);
  const Elements x{args.x, args.x_type};
  auto* ends = reinterpret_cast<Ends*>(args.ends);
  auto* lines = reinterpret_cast<AffineLine<double>*>(args.lines);
  const auto queue = static_cast<cudaStream_t>(stream);
  forget_kernel<<<element_blocks(slices), kElementThreads, 0, queue>>>(ends, slices);
  check_launch("the ends of an affine format");
  if (pieces.wide) {
    ends_kernel<32>
        <<<element_blocks(32 * pieces.count()), kElementThreads, 0, queue>>>(pieces, x, ends);
  } else {
    ends_kernel<1><<<element_blocks(pieces.count()), kElementThreads, 0, queue>>>(pieces, x, ends);
  }
  check_launch("the ends of an affine format");
  lines_kernel<<<element_blocks(slices), kElementThreads, 0, queue>>>(ends, lines, slices, codes);
  check_launch("the lines of an affine format");
}

void quantize_affine(const ScaledArgs& args, void* stream) {
  const int64_t count = args.sizes.outer * args.sizes.length * args.sizes.inner;
  if (count == 0) return;
  affine_lines(args, stream);
  const Elements x{args.x, args.x_type};
  const auto* lines = reinterpret_cast<const AffineLine<double>*>(args.lines);
  codes_kernel<<<element_blocks(count), kElementThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      SlicePieces(args.sizes), count, x, lines, args.out, AffineCodes(args.quantizer),
      number_format(kAffineIntegers), ElementRounding(args.quantizer + kFormatInts, args.draws));
  check_launch("quantize to an affine format");
}

}  // namespace lpk::cuda
