// Matrices become operands: their values are rounded, lie step by step with the lanes side by side,
// and are padded with zeros. Images become frames. The facts that kernels must know of the values
// are gathered on the way.
//
// A block of 256 threads moves 32 x 32 elements through shared memory, so that memory is read and
// written in runs of 32 neighbours.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "cuda/product/tiles.h"
#include "pack_map.h"

namespace lpk::cuda {

void check_launch(const char* what) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) +
                             ": the CUDA launch failed: " + cudaGetErrorString(error));
  }
}

namespace {

__device__ void add_facts(const Facts& mine, Facts* facts) {
  const Facts all{
      __reduce_or_sync(0xffffffffu, mine.mantissas), __reduce_max_sync(0xffffffffu, mine.highest),
      __reduce_max_sync(0xffffffffu, mine.lowest), __reduce_max_sync(0xffffffffu, mine.last_place)};
  if (threadIdx.x != 0) return;
  atomicOr(&facts->mantissas, all.mantissas);
  atomicMax(&facts->highest, all.highest);
  atomicMax(&facts->lowest, all.lowest);
  atomicMax(&facts->last_place, all.last_place);
}

// Blocks count lanes fastest, then steps, then matrices.
__global__ void pack_operand_kernel(const __grid_constant__ PackArgs args,
                                    const __grid_constant__ FusedRule rule, int64_t first_block) {
  __shared__ float moved[kPackSide * SquarePlace::kPitch];
  const int64_t across = args.padded / kPackSide;
  const int64_t down = ceil_div(args.steps, kPackSide);
  const int64_t block = first_block + blockIdx.x;
  const int64_t lane0 = block % across * kPackSide;
  const int64_t step0 = block / across % down * kPackSide;
  const int64_t matrix = block / across / down;
  const float* from = args.from + matrix * args.batch;
  const bool along_steps = args.step_stride == 1;

  Facts facts{0, 0, 0, 0};
  for (int i = threadIdx.y; i < kPackSide; i += kPackRows) {
    const SquarePlace at = square_place(threadIdx.x, i, along_steps);
    const int step = at.row, lane = at.col;
    float x = 0.0f;
    if (lane0 + lane < args.lanes && step0 + step < args.steps) {
      x = packed(from[(lane0 + lane) * args.lane_stride + (step0 + step) * args.step_stride], rule);
      facts = merged(facts, facts_of(__float_as_uint(x)));
    }
    moved[at.word()] = x;
  }
  add_facts(facts, args.facts);
  __syncthreads();
  for (int i = threadIdx.y; i < kPackSide; i += kPackRows) {
    if (step0 + i >= args.steps) continue;
    args.to[(matrix * args.steps + step0 + i) * args.padded + lane0 + threadIdx.x] =
        moved[square_place(threadIdx.x, i, false).word()];
  }
}

// Moves channels of places, as pack_operand_kernel moves lanes of steps. Blocks count places
// fastest, then channels, then images.
__global__ void frame_kernel(const __grid_constant__ FrameArgs args,
                             const __grid_constant__ FusedRule rule, int64_t first_block) {
  __shared__ float moved[kPackSide * SquarePlace::kPitch];
  const int64_t places = frame_places(args);
  const int64_t across = ceil_div(places, kPackSide);
  const int64_t down = ceil_div(args.channels, kPackSide);
  const int64_t block = first_block + blockIdx.x;
  const int64_t place0 = block % across * kPackSide;
  const int64_t channel0 = block / across % down * kPackSide;
  const int64_t image = block / across / down;
  const float* from = args.from + image * args.steps[0];
  const bool channels_side_by_side = args.steps[1] == 1;

  Facts facts{0, 0, 0, 0};
  for (int i = threadIdx.y; i < kPackSide; i += kPackRows) {
    const SquarePlace at = square_place(threadIdx.x, i, channels_side_by_side);
    const int channel = at.row, place = at.col;
    if (channel0 + channel >= args.channels || place0 + place >= places) continue;
    const Framed source = framed(args, place0 + place);
    float x = __uint_as_float(kAbsent);
    if (source.inside) {
      x = packed(from[(channel0 + channel) * args.steps[1] + source.at], rule);
      facts = merged(facts, facts_of(__float_as_uint(x)));
    }
    moved[at.word()] = x;
  }
  add_facts(facts, args.facts);
  __syncthreads();
  for (int i = threadIdx.y; i < kPackSide; i += kPackRows) {
    const SquarePlace at = square_place(threadIdx.x, i, args.channels_last);
    const int channel = at.row, place = at.col;
    if (channel0 + channel >= args.channels || place0 + place >= places) continue;
    args.to[framed_at(args, image, channel0 + channel, place0 + place)] = moved[at.word()];
  }
}

// Launches kernel<<<...>>>(args, rule, first block) for all blocks.
template <class Kernel, class Args>
void launch_blocks(Kernel kernel, const Args& args, int64_t blocks, void* stream,
                   const char* what) {
  const FusedRule rule = fused_rule(args.quantizer);
  constexpr int64_t kMost = int64_t{1} << 30;
  for (int64_t first = 0; first < blocks; first += kMost) {
    const int64_t count = blocks - first < kMost ? blocks - first : kMost;
    kernel<<<static_cast<unsigned>(count), dim3(kPackSide, kPackRows), 0,
             static_cast<cudaStream_t>(stream)>>>(args, rule, first);
    check_launch(what);
  }
}

}  // namespace

void pack_operand(const PackArgs& args, void* stream) {
  if (args.padded % kPad != 0 || args.padded < args.lanes) {
    throw std::invalid_argument("pack_operand: lanes must be padded to a multiple of " +
                                std::to_string(kPad) + ", got " + std::to_string(args.padded));
  }
  const int64_t blocks = args.count * (args.padded / kPackSide) * ceil_div(args.steps, kPackSide);
  launch_blocks(pack_operand_kernel, args, blocks, stream, "packing");
}

void frame(const FrameArgs& args, void* stream) {
  const int64_t across = ceil_div(frame_places(args), kPackSide);
  const int64_t blocks = args.images * ceil_div(args.channels, kPackSide) * across;
  launch_blocks(frame_kernel, args, blocks, stream, "framing an image");
}

}  // namespace lpk::cuda
