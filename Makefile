# This works on a bare machine with Python 3 and a C++ compiler: everything else comes from pip into .venv.
# A second run repeats only the steps that an edit asks for: pip after one of the packaging files, ninja
# after one of the C++ sources. The Python sources are used where they lie.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles a module to bytecode where it is first imported; to do so for every module that is
# installed would take half a minute. The bytecode is kept, whatever the environment says: each of the
# dozens of processes that the tests start would compile torch's modules again, in 3 to 5 s.
export PYTHONDONTWRITEBYTECODE :=
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
NATIVE := CMakeLists.txt setup.py $(shell find csrc -type f)
# The GPU run builds for the GPU it finds; the tests compile CUDA for one architecture where nvcc is, and
# every instruction set. The demo takes the module that there is, or compiles what this processor runs.
# The stamp of the module names what it has, so that no target takes a module that lacks some.
GPU_TARGET := $(or $(LPKERNELS_CUDA),native)
SEMICOLON := ;
STAMP := $(notdir $(lastword $(wildcard $(VENV)/.has-native_*_*)))
COMPILED = $(subst -,$(SEMICOLON),$(word $(1),$(subst _, ,$(STAMP))))
ifeq ($(or $(MAKECMDGOALS),demo),demo)
export LPKERNELS_CUDA ?= $(or $(call COMPILED,2),0)
export LPKERNELS_ISAS ?= $(or $(call COMPILED,3),native)
else
export LPKERNELS_CUDA ?= $(if $(shell command -v nvcc),90,0)
export LPKERNELS_ISAS ?= all
endif
HAS_NATIVE := $(VENV)/.has-native_$(subst $(SEMICOLON),-,$(LPKERNELS_CUDA))_$(subst $(SEMICOLON),-,$(LPKERNELS_ISAS))
# CXX=clang++-16 compiles everything anew with this compiler.
COMPILER := $(if $(filter default,$(origin CXX)),,-$(notdir $(lastword $(CXX))))
HAS_COMPILER := $(VENV)/.has-compiler$(COMPILER)

.PHONY: demo test check bench prove site mutants sanitize fuzz arm gpu
.NOTPARALLEL:

# $(call TIMED,what,command) runs the command and writes down its seconds, which the demo shows last.
TIMES := $(VENV)/times
ifeq ($(MAKELEVEL),0)
$(shell rm -f $(TIMES))
endif
define TIMED
@echo '$(2)'; set -e; begin=$$(date +%s); $(2); \
	echo "$(1): $$(($$(date +%s) - begin)) s" >> $(TIMES)
endef

demo: $(VENV)/.has-lab $(HAS_NATIVE)
	$(call TIMED,training three runs,$(BIN)/lpkernels demo)
	@cat $(TIMES)

# pytest with a time limit of so many seconds for each test: one that hangs fails, with the stacks of its
# threads. The limit is not in pyproject.toml, because the pytest of `make gpu` may lack the option.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal \
	--timeout=$(1) --timeout-method=signal

# Most tests are one thread of Python: two processes fill two cores, and one OpenMP thread in each keeps
# them from fighting; the one that is done first takes tests of the other. Tests of the thread count set
# it themselves. Where Triton is, its kernels run in its interpreter, which must be chosen before Triton
# is imported: a run of its own.
test: $(VENV)/.has-lab,dev $(HAS_NATIVE)
	set -e; build=build/$$($(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)'); \
	$(BIN)/cmake -S . -B $$build -DLPKERNELS_TESTS=ON >/dev/null; $(BIN)/cmake --build $$build
	$(call PYTEST,600) --durations=20
	! $(BIN)/python -c 'import triton' 2>/dev/null || \
		TRITON_INTERPRET=1 $(call PYTEST,600) --durations=10 tests/backends/triton

check: $(VENV)/.has-lab,dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find csrc -name '*.h' -o -name '*.c*' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/python -m tests.project.lines
	$(BIN)/python -m bench.tables --check
	$(BIN)/python -m pytest -q tests/project/test_layers.py tests/project/test_docs.py \
		tests/project/test_docstrings.py -k "layers or links or crowded or parameters"

bench: $(VENV)/.has-lab,dev $(HAS_NATIVE)
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.steps --keep

# This proves what holds for every value, writes it to proofs/results.jsonl, and runs the tests that
# take minutes.
prove: $(VENV)/.has-lab,dev $(VENV)/.has-prove,frameworks $(HAS_NATIVE) site
	$(BIN)/python -m proofs
	$(call PYTEST,3600) -m slow
	! $(BIN)/python -c 'import triton' 2>/dev/null || \
		TRITON_INTERPRET=1 $(call PYTEST,3600) -m slow tests/backends/triton

# This writes the site of docs/ and of the docstrings to build/site, for a browser without a network.
site: $(VENV)/.has-lab,dev $(VENV)/.has-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# This counts how many wrong tokens of the C++ rules the tests notice, in an hour or two;
# `.venv/bin/python -m mutants nn tests/nn` does so for a package of Python.
mutants: $(VENV)/.has-lab,dev $(VENV)/.has-mutants $(HAS_NATIVE)
	$(BIN)/python -m mutants kernels tests/backends/cpu tests/backends/cuda

# $(call ON_SET,environment,build) makes the calls of the replay and computes the fuzzer's saved inputs
# on one instruction set; 77 means that this processor lacks it.
SAVED := tests/data/fuzz_inputs.txt
ON_SET = { env $(1) $(2)/lpk_replay $(2)/calls && env $(1) $(2)/lpk_saved $(SAVED); test $$? = 0 -o $$? = 77; }

# This makes the calls of the replay and computes the fuzzer's saved inputs under AddressSanitizer and
# UBSan. It takes minutes, most of them for the compiler. Where the processor lacks AVX-512, its kernels
# are made to run without it, which takes the compiler hours. SOFTWARE_AVX512=ON does so anywhere, for
# the kernels of half precision on a processor that has AVX-512 without them; those are skipped there
# else.
SOFTWARE_AVX512 ?= $(shell grep -qw avx512f /proc/cpuinfo && echo OFF || echo ON)
sanitize: $(VENV)/.has-lab,dev $(HAS_NATIVE)
	$(BIN)/cmake -G Ninja -S . -B build/sanitize$(COMPILER) -DLPKERNELS_ISAS=all -DLPKERNELS_TESTS=ON -DLPKERNELS_SANITIZE=ON \
		-DLPKERNELS_SOFTWARE_AVX512=$(SOFTWARE_AVX512) \
		-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python \
		-Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) >/dev/null
	$(BIN)/cmake --build build/sanitize$(COMPILER) --target lpk_replay lpk_saved
	$(BIN)/python -m tests.support.replay --record build/sanitize$(COMPILER)/calls
	for isa in scalar avx2 avx512 avx512fp16; do \
		$(call ON_SET,LPKERNELS_ISA=$$isa OMP_WAIT_POLICY=passive,build/sanitize$(COMPILER)) || exit; done

# This runs libFuzzer on the C++ entry points, with both sanitizers, for FUZZ_SECONDS. LPKERNELS_ISA
# chooses the kernels. libFuzzer writes failures to the current folder, and inputs that reach new code
# to build/fuzz/corpus. Memory grows with these inputs: 39,000 of them fill the 2 GiB that libFuzzer
# grants itself.
FUZZ_SECONDS ?= 1800
fuzz: $(VENV)/.has-lab,dev $(VENV)/.has-fuzz
	$(BIN)/cmake -G Ninja -S . -B build/fuzz -DLPKERNELS_ISAS=all -DLPKERNELS_SANITIZE=ON \
		-DLPKERNELS_FUZZER=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/libclang_rt.fuzzer_no_main.a \
		-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python \
		-Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) >/dev/null
	$(BIN)/cmake --build build/fuzz --target lpk_fuzz
	mkdir -p build/fuzz/corpus
	OMP_WAIT_POLICY=passive ASAN_OPTIONS=detect_leaks=0 build/fuzz/lpk_fuzz -max_len=4096 -len_control=10 \
		-max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=8192 -print_final_stats=1 build/fuzz/corpus

# This compiles the kernels for ARM, makes the calls of the replay and computes the fuzzer's saved
# inputs under an emulator, on a processor with every instruction and on one without half precision.
ARM_CXX := aarch64-linux-gnu-g++
QEMU = qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu
arm: $(VENV)/.has-lab,dev $(HAS_NATIVE)
	@for tool in $(ARM_CXX) qemu-aarch64; do command -v $$tool >/dev/null || { \
		echo "make arm needs $$tool: apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }; done
	$(BIN)/cmake -G Ninja -S . -B build/arm -DLPKERNELS_ISAS=all -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_CXX_COMPILER=$(ARM_CXX) -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
		-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON -DLPKERNELS_TESTS=ON >/dev/null
	$(BIN)/cmake --build build/arm
	$(BIN)/python -m tests.support.replay --record build/arm/calls
	$(call ON_SET,LPKERNELS_ISA=neonfp16 $(QEMU) max,build/arm)
	$(call ON_SET,LPKERNELS_ISA=neon $(QEMU) cortex-a72,build/arm)
	$(call ON_SET,LPKERNELS_ISA=neon $(QEMU) max,build/arm)
	$(call ON_SET,LPKERNELS_ISA=scalar $(QEMU) max,build/arm)

gpu:
	PIP_NO_INDEX=1 LPKERNELS_CUDA=$(GPU_TARGET) LPKERNELS_ISAS=native $(PYTHON) -m pip install --no-deps --no-build-isolation -e .
	$(PYTHON) -m bench.gpu $(PARTS)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed, $(PYTHON) is " + sys.version)'
	$(PYTHON) -m venv $(VENV) && $@ -m pip --version >/dev/null || { rm -rf $(VENV); \
		echo "$(PYTHON) -m venv made no environment with pip: install your system's python3-venv package" >&2; exit 1; }

$(HAS_COMPILER): | $(BIN)/python
	rm -f $(VENV)/.has-compiler*
	touch $@

$(HAS_NATIVE): $(NATIVE) $(HAS_COMPILER)
	@echo "==> compiling what changed of the C++ module: [files done/files in all]"
	rm -f $(VENV)/.has-native_*
	$(call TIMED,compiling the C++ module,$(BIN)/python setup.py -q build_ext --inplace)
	touch $@

# pip shows nothing of a build: the module is compiled before, and pip finds nothing left to do.
$(VENV)/.has-%: pyproject.toml constraints.txt setup.py | $(BIN)/python
	@echo "==> installing what compiles the C++ module"
	$(INSTALL) setuptools pybind11 cmake ninja
	@echo "==> installing torch, a download of hundreds of megabytes, beside the compiler"
	$(MAKE) --no-print-directory $(HAS_NATIVE) & native=$$!; $(INSTALL) -q torch; wait $$native
	@echo "==> installing what else lpkernels[$*] needs"
	$(call TIMED,installing the packages,$(INSTALL) --no-build-isolation -e ".[$*]")
	touch $@
