# SPDX-License-Identifier: MIT
# glmd: one non-recursive makefile. `make help` lists the targets.
#
#   O=DIR          build directory (default build, build-address, build-thread, build-fault)
#   SAN=address    address + undefined behaviour sanitizers;  SAN=thread  thread sanitizer
#   SAN=fuzzer     clang's libFuzzer with both of the first and planted faults (`make fuzz` sets it)
#   GPU=cuda       with the CUDA backend (CUDA_ARCH="90 121", CUDA_HOME=/usr/local/cuda); O is build-cuda
#   GPU=sim        with the CUDA backend on a simulated device, for tests; O is build-sim
#   FAULTS=1       the mutation build: planted faults become run-time switches (GLMD_FAULT=name)
#   CROSS=aarch64-linux-gnu-   cross build
#   WERROR=1       warnings are errors (CI sets it)
#   V=1            print commands

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
SHELL := /bin/bash

VERSION := 0.1.0
SAN     ?=
FAULTS  ?=
CROSS   ?=
GPU     ?= none
O       ?= build$(if $(filter-out none,$(GPU)),-$(GPU))$(if $(SAN),-$(SAN))$(if $(FAULTS),-fault)$(if $(CROSS),-$(firstword $(subst -, ,$(CROSS))))
prefix  ?= /usr/local
libdir  ?= $(prefix)/lib
DESTDIR ?=

ifeq ($(origin CC),default)
CC := $(CROSS)gcc
endif
ifeq ($(origin AR),default)
AR := $(CROSS)ar
endif
NM := $(CROSS)nm
PKG_CONFIG ?= pkg-config
ARCH := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-6s %s\n' $(1) $(2))

CFLAGS  ?= -O2 -g
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 \
           $(if $(WERROR),-Werror)
# For x86-64 in general GCC clears and copies structs with `rep stos` and `rep movs`, which take ten times as long as
# stores and more to begin: 48 to 700 ns for 144 bytes, measured on an AMD EPYC. Clang does not.
NO_REP  := -mmemset-strategy=libcall:-1:noalign -mmemcpy-strategy=libcall:-1:noalign
NO_REP  := $(if $(filter x86_64,$(ARCH)),$(shell $(CC) $(NO_REP) -fsyntax-only -x c /dev/null 2>/dev/null && echo '$(NO_REP)'))
BASE    := -std=c11 -D_GNU_SOURCE -DGLMD_VERSION='"$(VERSION)"' -fPIC -fno-strict-aliasing -ffp-contract=off \
           -fvisibility=hidden -pthread -MMD -MP $(NO_REP)
ifeq ($(SAN),address)
SANF := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
else ifeq ($(SAN),thread)
SANF := -fsanitize=thread -fno-omit-frame-pointer
else ifeq ($(SAN),fuzzer)
SANF := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
# The CUDA backend: nvcc compiles .cu files, or g++ does against tests/cudasim, where a device is threads of this process.
CUDA_HOME ?= /usr/local/cuda
CUDA_ARCH ?= 90 121
NVCC      ?= $(CUDA_HOME)/bin/nvcc
CXX       := $(CROSS)g++
ifneq ($(filter-out none cuda sim,$(GPU)),)
$(error GPU is "$(GPU)", known are none, cuda and sim)
endif
ifneq ($(GPU),none)
GPU_ROOM := kernels/cuda
endif
ifeq ($(GPU),cuda)
ifeq ($(shell command -v $(NVCC)),)
$(error no CUDA compiler ($(NVCC)): install the CUDA toolkit, 13.0 or newer, and say where with CUDA_HOME)
endif
GPU_INC  := -isystem $(CUDA_HOME)/include
GPU_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lstdc++
else ifeq ($(GPU),sim)
GPU_INC  := -Itests/cudasim
GPU_LIBS := -lstdc++
endif
# FAULT(name) marks a planted fault; it is the constant 0 in every build but the mutation build.
FAULTF  := $(if $(FAULTS)$(filter fuzzer,$(SAN)),-include tests/mutate/fault.h,'-DFAULT(name)=0')
LDFLAGS ?=
LINK    := $(CC) -pthread $(SANF) $(LDFLAGS) -Wl,-z,defs,-z,now,--as-needed

pc_cflags = $(shell $(PKG_CONFIG) --cflags $(1) 2>/dev/null)
pc_libs   = $(shell $(PKG_CONFIG) --libs $(1) 2>/dev/null)

# ---------------------------------------------------------------------------------------------------
# Rooms: a directory, the include directories it may use, and the packages it may use.
# An include outside its row does not compile; `make layers` compares the graph with tests/layers.txt.
ROOMS := ipc kernels kernels/host kernels/ref kernels/cpu $(GPU_ROOM) kernels/script client client/tool \
         daemon/base daemon/loop daemon/conn daemon/emit daemon/prep daemon/mem daemon/model daemon/text \
         daemon/grammar daemon/sched daemon/cache daemon/spill daemon/engine daemon/main

inc_ipc            := ipc
inc_kernels        := kernels
inc_kernels/host   := kernels kernels/host
inc_kernels/ref    := kernels kernels/host kernels/ref
inc_kernels/cpu    := kernels kernels/host kernels/cpu
inc_kernels/cuda   := kernels kernels/host kernels/cuda
inc_kernels/script := kernels kernels/host kernels/script
inc_client         := client ipc
inc_client/tool    := client client/tool
inc_client/examples := client
inc_daemon/base    := daemon/base
inc_daemon/loop    := daemon/loop daemon/base
inc_daemon/mem     := daemon/mem daemon/base kernels
inc_daemon/model   := daemon/model daemon/mem daemon/base kernels
inc_daemon/text    := daemon/text daemon/base
inc_daemon/grammar := daemon/grammar daemon/text daemon/base
inc_daemon/sched   := daemon/sched daemon/base
inc_daemon/cache   := daemon/cache daemon/mem daemon/base kernels
inc_daemon/spill   := daemon/spill daemon/loop daemon/base
inc_daemon/engine  := daemon/engine daemon/cache daemon/spill daemon/grammar daemon/sched daemon/model daemon/mem \
                      daemon/base kernels kernels/host
inc_daemon/conn    := daemon/conn daemon/loop daemon/prep daemon/emit daemon/sched daemon/base ipc
inc_daemon/prep    := daemon/prep daemon/grammar daemon/text daemon/sched daemon/base ipc
inc_daemon/emit    := daemon/emit daemon/text daemon/base ipc
inc_daemon/main    := daemon/main daemon/conn daemon/prep daemon/emit daemon/engine daemon/grammar daemon/sched daemon/model \
                      daemon/mem daemon/text daemon/loop daemon/base kernels ipc
# Tools are built from the daemon's own rooms, never from conn or emit.
inc_daemon/tool    := daemon/tool daemon/engine daemon/sched daemon/model daemon/mem daemon/text daemon/base kernels kernels/host

pkg_daemon/base  := libsystemd
pkg_daemon/loop  := liburing
pkg_daemon/spill := liburing
pkg_daemon/model := jansson
pkg_daemon/text  := jansson
pkg_daemon/tool  := jansson
pkg_client/tool  :=
pkg_daemon/main  := libsystemd

# ISA variants are files of their own, chosen at run time.
isa_avx2   := -mavx2 -mfma -mf16c
isa_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
isa_neon   :=
skip_isa   := $(if $(filter x86_64,$(ARCH)),%_neon.c,%_avx2.c %_avx512.c)

# Vectors as plain arrays, instrumented element by element, would take minutes to inline.
san_kernels/cpu/cpu_ops_scalar.c := -fno-inline

room_src  = $(filter-out $(skip_isa),$(wildcard $(1)/*.c))
room_id   = $(subst /,_,$(1))
room_lib  = $(O)/lib/$(call room_id,$(1)).a
obj       = $(patsubst %.c,$(O)/obj/%.o,$(1))
isa_flags = $(foreach i,avx2 avx512 neon,$(if $(filter %_$(i),$(basename $(1))),$(isa_$(i))))

define room_rules
$(O)/obj/$(1)/%.o: $(1)/%.c Makefile
	$$(call say,CC,$$<)
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(BASE) $$(CFLAGS) $(if $(SAN),-O1 $$(san_$$<),$(if $(filter kernels%,$(1)),-O3)) $$(WARN) $$(SANF) $$(FAULTF) $(addprefix -I,$(inc_$(1))) \
	    $$(if $(pkg_$(1)),$$(call pc_cflags,$(pkg_$(1)))) $$(call isa_flags,$$<) $(if $(filter kernels/cuda,$(1)),$$(GPU_INC)) \
	    $(if $(filter kernels,$(1)),$$(if $$(GPU_ROOM),-DGLMD_CUDA)) -c -o $$@ $$<
$(call room_lib,$(1)): $$(call obj,$$(call room_src,$(1)))
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$^
endef
$(foreach r,$(ROOMS) daemon/tool,$(eval $(call room_rules,$(r))))

CU_INC := $(addprefix -I,$(inc_kernels/cuda))
ifeq ($(GPU),cuda)
$(O)/obj/kernels/cuda/%.cu.o: kernels/cuda/%.cu Makefile
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -std=c++17 -O3 -lineinfo -MMD -MP -MF $(@:.o=.d) $(if $(WERROR),-Werror all-warnings) $(FAULTF) $(CU_INC) \
	    -Xcompiler -fPIC,-fvisibility=hidden,-pthread,-g \
	    $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a),code=sm_$(a)) -c -o $@ $<
else ifeq ($(GPU),sim)
$(O)/obj/kernels/cuda/%.cu.o: kernels/cuda/%.cu Makefile
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) -x c++ -std=c++17 -D_GNU_SOURCE -DCUDA_SIM $(CFLAGS) -fPIC -fvisibility=hidden -fno-strict-aliasing \
	    -ffp-contract=off -pthread -MMD -MP -Wall -Wno-unknown-pragmas -Wno-maybe-uninitialized $(if $(WERROR),-Werror) $(FAULTF) $(GPU_INC) $(CU_INC) \
	    -c -o $@ $<
$(O)/obj/tests/cudasim/%.o: tests/cudasim/%.c Makefile
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(WARN) $(SANF) $(FAULTF) -Itests/cudasim -c -o $@ $<
$(call room_lib,kernels/cuda): $(call obj,$(wildcard tests/cudasim/*.c))
endif
$(call room_lib,kernels/cuda): $(patsubst %.cu,$(O)/obj/%.cu.o,$(wildcard kernels/cuda/*.cu))

libs_of = $(foreach r,$(1),$(call room_lib,$(r)))
K_ROOMS := kernels kernels/host kernels/ref kernels/cpu $(GPU_ROOM) kernels/script
E_ROOMS := daemon/engine daemon/cache daemon/spill daemon/grammar daemon/sched daemon/model daemon/mem daemon/text daemon/base $(K_ROOMS)
D_ROOMS := daemon/conn daemon/prep daemon/emit daemon/loop ipc $(E_ROOMS)
D_PKGS  := liburing libsystemd jansson
group    = -Wl,--start-group $(1) -Wl,--end-group $(GPU_LIBS)

TOOLS := $(patsubst daemon/tool/%.c,%,$(wildcard daemon/tool/glm-*.c))
BINS  := $(O)/glmd $(O)/glmctl $(addprefix $(O)/,$(TOOLS))
CLIENT_LIB := $(O)/libglmd.so.1

# A machine without the packages gets one clear line instead of the compiler's first complaint. These goals say
# so by themselves, install what is missing, or compile nothing.
SELF_HELP := check-gpu check-gpu-programs soak stress help deps demo check check-long check-arm fuzz mutate bench bench-ipc bench-sched bench-formats kernel-report golden lint checker spin models clean
ifneq ($(filter-out $(SELF_HELP),$(or $(MAKECMDGOALS),all)),)
ifeq ($(shell command -v $(firstword $(CC))),)
$(error no compiler ($(firstword $(CC))): 'make deps' installs it, or lists what to ask for)
endif
ifneq ($(filter-out $(SELF_HELP) client,$(or $(MAKECMDGOALS),all)),)
$(foreach p,$(D_PKGS),$(if $(shell $(PKG_CONFIG) --exists $(p) 2>/dev/null && echo yes),,\
    $(error the library $(p) is missing: 'make deps' installs it, or lists what to ask for)))
endif
endif

.PHONY: all client daemon help
all: client daemon
client: $(CLIENT_LIB) $(O)/libglmd.so $(O)/libglmd.a $(O)/glmctl $(O)/glmd.pc
daemon: $(O)/glmd $(addprefix $(O)/,$(TOOLS))

$(O)/glmd: $(call obj,$(call room_src,daemon/main)) $(call libs_of,$(D_ROOMS))
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(call pc_libs,$(D_PKGS)) -lm

# The daemon as the tests run it: any allocation on the engine or emit thread after READY aborts.
WRAP_SYMS := malloc calloc realloc free mmap fopen posix_memalign aligned_alloc strdup
WRAP      := $(addprefix -Wl$(comma)--wrap=,$(WRAP_SYMS))
comma     := ,
WRAP      := $(foreach s,$(WRAP_SYMS),-Wl,--wrap=$(s))
$(O)/test/glmd: $(call obj,$(call room_src,daemon/main)) $(O)/obj/tests/lib/allocwrap.o $(call libs_of,$(D_ROOMS))
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) $(WRAP) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(call pc_libs,$(D_PKGS)) -lm

# The daemon whose calls fail as a test says (tests/lib/failctl.h).
FAIL_WRAP := $(foreach s,$(shell cat tests/lib/failwrap.syms),-Wl,--wrap=$(s))
$(O)/test/glmd-fail: $(call obj,$(call room_src,daemon/main)) $(O)/obj/tests/lib/failwrap.o $(call libs_of,$(D_ROOMS))
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) $(FAIL_WRAP) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(call pc_libs,$(D_PKGS)) -lm

$(addprefix $(O)/,$(TOOLS)): $(O)/%: $(O)/obj/daemon/tool/%.o $(call obj,$(filter-out daemon/tool/glm-%,$(call room_src,daemon/tool))) $(call libs_of,$(E_ROOMS))
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(call pc_libs,$(D_PKGS)) -lm

$(CLIENT_LIB): $(call obj,$(call room_src,client)) client/libglmd.map
	$(call say,LINK,$@)
	$(Q)$(LINK) -shared -Wl,-soname,libglmd.so.1 -Wl,--version-script=client/libglmd.map -o $@ $(filter %.o,$^)
$(O)/libglmd.so: $(CLIENT_LIB)
	$(Q)ln -sf libglmd.so.1 $@
$(O)/libglmd.a: $(call obj,$(call room_src,client))
	@rm -f $@
	$(Q)$(AR) rcs $@ $^
$(O)/glmctl: $(call obj,$(call room_src,client/tool)) $(O)/libglmd.a
	$(call say,LINK,$@)
	$(Q)$(LINK) -o $@ $^
pc_sed = sed -e 's|@prefix@|$(prefix)|;s|@libdir@|$(libdir)|;s|@version@|$(VERSION)|'
$(O)/glmd.pc: client/glmd.pc.in Makefile
	@mkdir -p $(@D)
	$(Q)$(pc_sed) $< > $@

# ---------------------------------------------------------------------------------------------------
# Tests. tests/unit/NAME.c -> one Check program each; tests/bench/NAME.c -> one program each.
TEST_INC := tests/lib $(sort $(foreach r,$(ROOMS),$(inc_$(r))) daemon/tool)
TEST_PKG := check jansson liburing libsystemd libpcre2-8
# a cross build has no screen; cuda_core and cudasim_ make calls of the simulated runtime fail
UNIT  := $(filter-out $(if $(CROSS),examples_window) $(if $(GPU_ROOM),,cuda_%) $(if $(filter sim,$(GPU)),,cuda_core cudasim_%),\
    $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/*.c)))
BENCH := $(patsubst tests/bench/%.c,%,$(wildcard tests/bench/*.c))
# Forked children stay away from Check (tests/lib/childcheck.h); temporary files go away (tests/lib/tmpleft.h).
TLINK  = $(LINK) $(foreach s,_mark_point _ck_assert_failed srunner_run_all mkdtemp mkstemp,-Wl,--wrap=$(s))
TLIB  := $(call obj,$(filter-out tests/lib/allocwrap.c tests/lib/failwrap.c,$(wildcard tests/lib/*.c)))

$(O)/obj/tests/%.o: tests/%.c Makefile
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(filter-out -Wmissing-prototypes -Wconversion,$(WARN)) $(SANF) $(FAULTF) \
	    $(addprefix -I,$(TEST_INC)) $(GPU_INC) $(call pc_cflags,$(TEST_PKG)) $(call isa_flags,$<) -DTEST_BUILD='"$(O)"' -c -o $@ $<
# Tests of the CUDA backend for a machine that has CUDA and a C compiler and nothing else: tests/gpu/check.h in Check's
# place.
GPU_TESTS := $(filter-out cuda_golden cuda_core,$(filter cuda_%,$(UNIT)))
GPU_TLIB  := kernmodel kernnaive kernpair kernplan kernstores
$(O)/gpu/obj/%.o: tests/%.c tests/gpu/check.h Makefile
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(CFLAGS) $(filter-out -Wmissing-prototypes -Wconversion,$(WARN)) $(FAULTF) -Itests/gpu \
	    -Itests/lib $(addprefix -I,$(K_ROOMS)) $(GPU_INC) -c -o $@ $<
.PHONY: check-gpu-programs
.SECONDARY: $(patsubst %,$(O)/gpu/obj/unit/%.o,$(GPU_TESTS))
check-gpu-programs: $(addprefix $(O)/gpu/,$(GPU_TESTS))
$(O)/gpu/cuda_%: $(O)/gpu/obj/unit/cuda_%.o $(patsubst %,$(O)/gpu/obj/lib/%.o,$(GPU_TLIB)) $(call libs_of,$(K_ROOMS))
	$(call say,LINK,$@)
	$(Q)$(CC) -pthread $(LDFLAGS) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) -lm
# Programs named fail_… make their own calls fail.
$(filter $(O)/unit/fail_%,$(addprefix $(O)/unit/,$(UNIT))): FAILING := $(FAIL_WRAP)
$(filter $(O)/unit/fail_%,$(addprefix $(O)/unit/,$(UNIT))): $(O)/obj/tests/lib/failwrap.o
$(addprefix $(O)/unit/,$(UNIT)): $(O)/unit/%: $(O)/obj/tests/unit/%.o $(TLIB) $(call libs_of,$(D_ROOMS) daemon/tool) $(O)/libglmd.a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(TLINK) $(FAILING) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(call pc_libs,$(TEST_PKG)) -lm
$(addprefix $(O)/bench/,$(BENCH)): $(O)/bench/%: $(O)/obj/tests/bench/%.o $(TLIB) $(call libs_of,$(D_ROOMS) daemon/tool) $(O)/libglmd.a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(TLINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(call pc_libs,$(TEST_PKG)) -lm

# Every fuzz target in one program; FUZZ_TARGET chooses.
$(O)/fuzz: $(O)/obj/tests/fuzz/entry.o $(TLIB) $(call libs_of,$(D_ROOMS) daemon/tool) $(O)/libglmd.a
	$(call say,LINK,$@)
	$(Q)$(TLINK) -fsanitize=fuzzer -Wl,-z,muldefs -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(call pc_libs,$(TEST_PKG)) -lm

$(O)/test/soak: $(patsubst tests/%.c,$(O)/obj/tests/%.o,$(wildcard tests/soak/*.c)) $(TLIB) $(call libs_of,$(D_ROOMS) daemon/tool) $(O)/libglmd.a
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(TLINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(call pc_libs,$(TEST_PKG)) -lm

.PHONY: tests unit
tests: all examples $(addprefix $(O)/unit/,$(UNIT)) $(O)/test/glmd $(O)/test/glmd-fail $(O)/test/soak
unit: $(addprefix $(O)/unit/,$(UNIT))

include tests/tests.mk

# ---------------------------------------------------------------------------------------------------
# Examples: built as a user builds them, against the shared library, which exports nothing but glmd.h. Each has its
# own packages, which a cross build lacks.
EXAMPLES := poll glmd_epoll $(if $(CROSS),,glmd_uv glmd_glib glmd_window)
EX_OBJ   := $(O)/obj/client/examples
ex_pkg_glmd_uv     := libuv
ex_pkg_glmd_glib   := glib-2.0
ex_pkg_glmd_source := glib-2.0
ex_pkg_glmd_window := gtk+-3.0

.PHONY: examples
.SECONDARY: $(patsubst client/examples/%.c,$(EX_OBJ)/%.o,$(wildcard client/examples/*.c))
examples: client $(addprefix $(O)/examples/,$(EXAMPLES))
$(EX_OBJ)/%.o: client/examples/%.c Makefile
	$(call say,CC,$<)
	@mkdir -p $(@D)
	@for p in $(ex_pkg_$*); do $(PKG_CONFIG) --exists $$p || \
	    { echo "the library $$p is missing, which $< needs: 'make deps' installs it, or lists what to ask for"; exit 1; }; done
	$(Q)$(CC) $(BASE) $(CFLAGS) $(if $(SAN),-O1) $(WARN) $(SANF) $(addprefix -I,$(inc_client/examples)) \
	    $(patsubst -I%,-isystem %,$(if $(ex_pkg_$*),$(call pc_cflags,$(ex_pkg_$*)))) -c -o $@ $<
$(O)/examples/glmd_epoll $(O)/examples/glmd_uv $(O)/examples/glmd_glib: $(EX_OBJ)/ask.o
$(O)/examples/glmd_glib $(O)/examples/glmd_window: $(EX_OBJ)/glmd_source.o
$(O)/examples/%: $(EX_OBJ)/%.o $(O)/libglmd.so
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' -o $@ $(filter %.o,$^) -L$(O) -lglmd $(if $(ex_pkg_$*),$(call pc_libs,$(ex_pkg_$*)))

.PHONY: clean
clean:
	rm -rf build build-*

-include $(shell test -d $(O)/obj && find $(O)/obj -name '*.d')
