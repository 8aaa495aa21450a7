// Where the integers that describe formats and accumulators stand. Written by
// `python -m tests.project.integers` from the classes of these names in integers.py of
// lpkernels/formats and lpkernels/arithmetic. A slice is given by its first integer.
#pragma once

namespace lpk {

struct InFloat {
  static constexpr int kExpBits = 1;
  static constexpr int kManBits = 2;
  static constexpr int kBias = 3;
  static constexpr int kSpecials = 4;
  static constexpr int kSubnormals = 5;
  static constexpr int kOverflow = 6;
  static constexpr int kUnsigned = 7;
};

struct InFixed {
  static constexpr int kWordBits = 1;
  static constexpr int kFracBits = 2;
  static constexpr int kSigned = 3;
  static constexpr int kOverflow = 4;
};

struct InAffine {
  static constexpr int kBits = 1;
  static constexpr int kSymmetric = 2;
  static constexpr int kHasAxis = 3;
  static constexpr int kAxis = 4;
};

struct InBlock {
  static constexpr int kSize = 1;
  static constexpr int kAxis = 2;
  static constexpr int kLines = 3;
  static constexpr int kScale = 4;
  static constexpr int kRule = 5;
  static constexpr int kTarget = 6;
  static constexpr int kSteps = 7;
  static constexpr int kElement = 8;
  static constexpr int kScaleFormat = 16;
};

struct InTable {
  static constexpr int kHandle = 1;
  static constexpr int kBits = 2;
  static constexpr int kCount = 3;
  static constexpr int kInfinity = 4;
  static constexpr int kNanCode = 5;
};

struct InAccumulator {
  static constexpr int kOrder = 0;
  static constexpr int kChunk = 1;
  static constexpr int kRounding = 2;
  static constexpr int kProductRounding = 3;
  static constexpr int kRandomBits = 4;
  static constexpr int kRng = 5;
  static constexpr int kHasProduct = 6;
  static constexpr int kHasOuter = 7;
  static constexpr int kFormat = 8;
  static constexpr int kProduct = 16;
  static constexpr int kOuter = 24;
  static constexpr int kBlock = 32;
  static constexpr int kAlignedBits = 33;
  static constexpr int kOuterRounding = 34;
  static constexpr int kScaleOrder = 35;
  static constexpr int kGroup = 36;
  static constexpr int kPlain = 37;
  static constexpr int kLeft = 37;
  static constexpr int kRight = 45;
  static constexpr int kHasLeastExponent = 53;
  static constexpr int kLeastExponent = 54;
  static constexpr int kInterleaved = 55;
  static constexpr int kAdder = 56;
  static constexpr int kAll = 57;
};

}  // namespace lpk
