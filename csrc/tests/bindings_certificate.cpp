// The certificate of two operands' products (common/certificate.h), asked with facts in the place
// of operands: tests/backends/triton/test_certificate.py compares Triton's own certificate with it,
// bound for bound. And its draws, which tests/numbers/test_rng.py compares with the frozen ones.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/certificate.h"
#include "common/check.h"
#include "common/rng.h"

namespace py = pybind11;

namespace {

using Ints = std::vector<int64_t>;

// plain, width, lowest, highest.
lpk::OperandRange range_from(const Ints& facts) {
  LPK_CHECK(facts.size() == 4, "the facts of an operand are (plain, width, lowest, highest)");
  return {facts[0] != 0, false, static_cast<int>(facts[1]), static_cast<int>(facts[2]),
          static_cast<int>(facts[3])};
}

// The addends' range, the bounds for sums of `digits` bits (24 or 53), and what certify makes of
// them for a sum of `terms` products from +0, the left operand scaled.
py::dict certificate(Ints accumulator, const Ints& left, const Ints& right, int digits,
                     int64_t terms) {
  LPK_CHECK(accumulator.size() == lpk::kPlainAccumulatorInts ||
                accumulator.size() == lpk::kAccumulatorInts,
            "an accumulator has 37 integers, or 57");
  LPK_CHECK(digits == 24 || digits == 53, "sums have 24 or 53 bits");
  accumulator.resize(lpk::kAccumulatorInts);
  const lpk::Accumulator acc = lpk::accumulator_from(accumulator.data());
  LPK_CHECK(acc.fmt.kind == lpk::Kind::kFloat, "certificates of bounds are for float formats");
  const lpk::OperandRange a = range_from(left), b = range_from(right);
  const lpk::Precision in = digits == 24 ? lpk::single_precision() : lpk::double_precision();
  const lpk::AddendRange products = product_range(a, b), p = addend_range(acc, products);
  const lpk::Certificate c =
      certify(in, acc.fmt, acc.rounding, acc.random_bits, p, lpk::range_of_zeros(), a, terms);
  py::dict bounds;
  bounds["stay"] = !acc.has_product || products_stay(acc.product, products);
  bounds["width"] = p.width;
  bounds["lowest"] = p.lowest;
  bounds["highest"] = p.highest;
  bounds["nearest"] = nearest_bound(in, acc.fmt, p.width, p.lowest);
  bounds["overflow"] = overflow_exponent(acc.fmt);
  bounds["place"] = lowest_place(acc.fmt);
  bounds["valid"] = c.valid;
  bounds["odd"] = c.odd;
  bounds["floor"] = c.floor;
  bounds["everywhere"] = c.everywhere;
  bounds["bound"] = c.bound;
  bounds["reached"] = c.reached;
  return bounds;
}

// A draw of csrc/common/rng.h; 32 bits are a whole word.
uint32_t draw(const std::string& rng, uint64_t seed, uint32_t site, uint64_t row, uint64_t col,
              uint64_t k, int random_bits) {
  const lpk::Rng by = rng == "philox" ? lpk::Rng::kPhilox : lpk::Rng::kFast;
  return lpk::random_draw(by, seed, site, row, col, k, random_bits);
}

}  // namespace

namespace lpk {

void register_certificate(py::module_& module) {
  module.def("certificate", &certificate);
  module.def("draw", &draw);
}

}  // namespace lpk
