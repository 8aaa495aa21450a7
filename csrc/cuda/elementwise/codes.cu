// Values become dense codes, and codes values (code_map.h). A thread makes whole words of the
// stream, or single values of it. For block formats, groups of lanes make blocks, as in
// quantize_blocks.cu.
#include "block_extent.h"
#include "code_map.h"
#include "elements.h"

namespace lpk::cuda {
namespace {

__device__ void refuse(int64_t mine, int64_t* refused) {
  if (mine == kNoneRefused) return;
  atomicMin(reinterpret_cast<long long*>(refused), static_cast<long long>(mine));
}

__global__ void pack_codes_kernel(const __grid_constant__ Codec codec, const float* x,
                                  int64_t count, int64_t words, uint32_t* to, int64_t* refused) {
  int64_t mine = kNoneRefused;
  for (int64_t w = grid_thread(); w < words; w += grid_threads())
    to[w] = code_word(codec, x, count, w, &mine);
  refuse(mine, refused);
}

__global__ void unpack_codes_kernel(const __grid_constant__ Codec codec, const uint8_t* codes,
                                    int64_t bytes, int64_t count, float* x) {
  for (int64_t i = grid_thread(); i < count; i += grid_threads()) {
    const uint32_t code = field_at(codes, bytes, i * codec.bits(), codec.bits());
    x[i] = canonical_float(codec.decode(code));
  }
}

template <int kLanes>
__global__ void pack_blocks_kernel(const __grid_constant__ BlockShape shape,
                                   const __grid_constant__ BlockElement element,
                                   const __grid_constant__ Codec codec, const float* x,
                                   uint32_t* to, int64_t* refused) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  int64_t mine = kNoneRefused;
  const Elements values{x, ElementType::kFloat32};
  for (int64_t i = grid_thread() / kLanes; i < shape.count(); i += grid_threads() / kLanes) {
    const BlockSpan span = shape.block(i);
    const Extent extent = whole_extent<kLanes>(extent_of(span, lane, kLanes, values));
    pack_block(span, lane, kLanes, extent, element, codec, x, to, &mine);
  }
  refuse(mine, refused);
}

template <int kLanes>
__global__ void unpack_blocks_kernel(const __grid_constant__ BlockShape shape,
                                     const __grid_constant__ Codec codec, const uint8_t* codes,
                                     int64_t bytes, float* x) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int64_t i = grid_thread() / kLanes; i < shape.count(); i += grid_threads() / kLanes)
    unpack_block(shape.block(i), lane, kLanes, codec, codes, bytes, x);
}

bool is_block(const CodeArgs& args) { return args.format[0] == static_cast<int64_t>(Kind::kBlock); }
int64_t element_count(const AxisSizes& s) { return s.outer * s.length * s.inner; }

void pack_blocks(const CodeArgs& args, const float* x, uint32_t* words, int64_t* refused,
                 cudaStream_t queue) {
  const Codec codec(args.format + kFormatInts);
  const BlockElement element(args.format + kFormatInts);
  const BlockShape shape(args.sizes, args.format[1], codec.bits());
  // Lanes join their fields to a stream of zeros.
  const int64_t bits = element_count(args.sizes) * codec.bits() + 8 * shape.count();
  cudaMemsetAsync(words, 0, static_cast<size_t>(4 * ceil_div(bits, 32)), queue);
  if (shape.wide()) {
    pack_blocks_kernel<32><<<element_blocks(32 * shape.count()), kElementThreads, 0, queue>>>(
        shape, element, codec, x, words, refused);
  } else {
    pack_blocks_kernel<1><<<element_blocks(shape.count()), kElementThreads, 0, queue>>>(
        shape, element, codec, x, words, refused);
  }
}

void unpack_blocks(const CodeArgs& args, const uint8_t* codes, int64_t bytes, float* x,
                   cudaStream_t queue) {
  const Codec codec(args.format + kFormatInts);
  const BlockShape shape(args.sizes, args.format[1], codec.bits());
  if (shape.wide()) {
    unpack_blocks_kernel<32><<<element_blocks(32 * shape.count()), kElementThreads, 0, queue>>>(
        shape, codec, codes, bytes, x);
  } else {
    unpack_blocks_kernel<1><<<element_blocks(shape.count()), kElementThreads, 0, queue>>>(
        shape, codec, codes, bytes, x);
  }
}

}  // namespace

void pack_codes(const CodeArgs& args, const float* x, uint32_t* words, int64_t* refused,
                void* stream) {
  const int64_t count = element_count(args.sizes);
  if (count == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
  if (is_block(args)) {
    pack_blocks(args, x, words, refused, queue);
  } else {
    const Codec codec(args.format);
    const int64_t length = ceil_div(count * codec.bits(), 32);
    pack_codes_kernel<<<element_blocks(length), kElementThreads, 0, queue>>>(
        codec, x, count, length, words, refused);
  }
  check_launch("pack");
}

void unpack_codes(const CodeArgs& args, const uint8_t* codes, int64_t bytes, float* x,
                  void* stream) {
  const int64_t count = element_count(args.sizes);
  if (count == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
  if (is_block(args)) {
    unpack_blocks(args, codes, bytes, x, queue);
  } else {
    unpack_codes_kernel<<<element_blocks(count), kElementThreads, 0, queue>>>(
        Codec(args.format), codes, bytes, count, x);
  }
  check_launch("unpack");
}

}  // namespace lpk::cuda
