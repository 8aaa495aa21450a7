// The groups of tests that main.cpp runs by name.
#pragma once

namespace lpk_test {

// Tests of csrc/common and the dtypes, which have one instruction set.
void test_round();
void test_add();
void test_rng();
void test_dtypes();
void test_pack();
// Tests of what csrc/cuda compiles for the host too.
void test_cuda();
void test_cuda_banks();
void test_cuda_certified();
void test_cuda_rules();
void test_cuda_ends();
// Tests of what csrc/cpu compiles for each instruction set.
void test_quantize();
void test_count();
void test_matmul();
void test_tables();
void test_scaled();
void test_fused();
void test_conv();
void test_events();
void test_update();

}  // namespace lpk_test
