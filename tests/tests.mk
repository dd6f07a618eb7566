# SPDX-License-Identifier: MIT
# Everything that checks, measures or shows the programs. Included by the top makefile.

MODELS := build/models
export GLMD_MODELS := $(CURDIR)/$(MODELS)
comma := ,

.PHONY: help deps models check check-gpu quality check-long check-arm layers lint checker abi-update mutate fuzz bench bench-ipc bench-sched bench-formats demo spin soak stress golden kernel-report install
help:
	@echo 'make            build the library, the tools and the daemon into build/'
	@echo 'make demo       install what is missing, build, start glmd with a small model, ask it three questions'
	@echo 'make check      install what is missing, build, run every test (SAN=address|thread for sanitizers)'
	@echo 'make check-long check, both sanitizers, stress, planted faults, fuzzers, aarch64 under emulation'
	@echo 'make check-gpu  the CUDA backend on this machine'"'"'s GPU: needs nvcc and a C compiler alone (CUDA_ARCH=90: one GPU'"'"'s)'
	@echo 'make bench      measure decode, prefill, first token and publishing against their bars'
	@echo 'make bench-ipc  measure the rings: throughput, hand-over, bells, idle time, CPU per token against TCP'
	@echo 'make bench-sched  measure many users at once: shares, batches, gaps, prompts sent again'
	@echo 'make bench-formats  measure stored weights: packing at load, a step in each format against BF16'
	@echo 'make kernel-report  registers, spills, shared memory and instructions a weight of the CUDA kernels; needs nvcc only'
	@echo 'make quality    what every weight format does to nano: KL, first choices, text in three languages; writes a table'
	@echo 'make examples   build the event-loop examples of client/examples into build/examples/'
	@echo 'make stress     10^9 records over the rings and 10^8 through a daemon on each loop, with sides that are killed'
	@echo 'make soak       30 minutes (SOAK_MINUTES) of kills, stalls and cancels; memory and descriptors stay flat'
	@echo 'make mutate     plant faults one by one; each must be caught by its named test'
	@echo 'make fuzz       every fuzz target for FUZZ_SECONDS=60 seconds each, with clang'
	@echo 'make layers     check which room includes which against tests/layers.txt'
	@echo 'make checker    the address-space checker: memory of the peer is read through ipc/ringops.h alone'
	@echo 'make abi-update write tests/abi anew, after additions to the interface of libglmd'
	@echo 'make deps       install the packages needed (apt); without root it lists them'
	@echo 'make models     unpack the two small checkpoints into build/models/'
	@echo 'make golden     compare both checkpoints with the golden values, with both backends'
	@echo 'make install    programs, library, header, manual pages, units; prefix=/usr/local DESTDIR='
	@echo 'Variables: O=DIR build directory, V=1 print commands, SAN= FAULTS= CROSS= see the top of the Makefile'

deps:
	@tests/deps.sh build test

models: $(MODELS)/nano/.unpacked $(MODELS)/twin-a/.unpacked
$(MODELS)/%/.unpacked: tests/models/%.tar.xz
	$(call say,XZ,$<)
	@mkdir -p $(MODELS)
	$(Q)tar -C $(MODELS) -xJf $< && touch $@

# A fresh machine has no pkg-config when make reads this file, so targets that install first re-enter make.
check:
	@tests/deps.sh build test
	@+$(MAKE) --no-print-directory check-run WERROR=1

# Only what CUDA and a C compiler can build, so nothing is installed; the golden values, where their packages are.
check-gpu:
	@+$(MAKE) --no-print-directory GPU=cuda check-gpu-programs
	@+if $(PKG_CONFIG) --exists $(TEST_PKG) 2>/dev/null; then \
	    $(MAKE) --no-print-directory GPU=cuda models build-cuda/unit/cuda_golden; fi
	@tests/gpu/check.sh build-cuda

.PHONY: check-run
check-run: models tests
	@tests/run.sh $(O) "$(SAN)"

layers: all
	@tests/layers.sh $(O) tests/layers.txt
lint:
	@tests/lint.sh
checker:
	@tests/deps.sh test
	@tests/system/checker.sh
abi-update: $(CLIENT_LIB)
	@tests/system/abi.sh $(O) update

golden:
	@tests/deps.sh build
	@+$(MAKE) --no-print-directory models daemon
	@tests/system/golden.sh $(O)

spin:
	@tests/spin/run.sh

# A thousand million records over the bare rings, a hundred million through a daemon on each loop: half an hour
STRESS_RECORDS ?= 1000000000
STRESS_DAEMON_RECORDS ?= 100000000
stress:
	@tests/deps.sh build test
	@+$(MAKE) --no-print-directory tests
	GLMD_STRESS_RECORDS=$(STRESS_RECORDS) $(O)/unit/ipc_stress
	GLMD_STRESS_DAEMON_RECORDS=$(STRESS_DAEMON_RECORDS) $(O)/unit/daemon_stress

# SOAK_MINUTES=30; SOAK_JSON=1 prints one object
soak:
	@tests/deps.sh build test
	@+$(MAKE) --no-print-directory tests
	@$(O)/test/soak $(if $(SOAK_JSON),--json)

check-long: check
	@GLMD_MUTATION_CLIENTS=20000 GLMD_MUTATION_SEED=1000000 build/unit/conn_mutation
	@+$(MAKE) --no-print-directory check SAN=address
	@+$(MAKE) --no-print-directory check SAN=thread
	@+$(MAKE) --no-print-directory stress
	@+$(MAKE) --no-print-directory mutate
	@+$(MAKE) --no-print-directory fuzz
	@+$(MAKE) --no-print-directory check-arm

check-arm:
	@tests/deps.sh build test arm
	@+$(MAKE) --no-print-directory models
	@tests/arm.sh

mutate:
	@tests/deps.sh build test
	@+$(MAKE) --no-print-directory FAULTS=1 models tests
	@tests/mutate/run.sh build-fault

FUZZ_SECONDS ?= 60
fuzz:
	@tests/deps.sh build test fuzz
	@+$(MAKE) --no-print-directory models
	@+$(MAKE) --no-print-directory SAN=fuzzer CC='$(FUZZ_CC)' O=build-fuzzer build-fuzzer/fuzz
	@tests/fuzz/run.sh build-fuzzer/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)
FUZZ_CC ?= clang

bench bench-ipc bench-sched bench-formats:
	@tests/deps.sh build test
	@+$(MAKE) --no-print-directory bench-build
	@+$(if $(filter 1,$(BENCH_HANDICAP)),$(MAKE) --no-print-directory FAULTS=1 bench-build)
	@tests/bench/run.sh $(O) $(patsubst bench-%,%,$(patsubst bench,bench-model,$@))
.PHONY: bench-build
bench-build: models all $(addprefix $(O)/bench/,$(BENCH))

# No device, and no package but the compiler
kernel-report:
	@tests/gpu/kernel_report.py $(NVCC) $(subst $(eval) ,$(comma),$(strip $(CUDA_ARCH))) build-report \
	    $(wildcard kernels/cuda/*.cu) -- -std=c++17 -O3 $(CU_INC) '-DFAULT(name)=0'

# QUALITY_FORMATS="nvfp4 q4_k": these alone, anew. An interrupted run goes on with the next format
quality:
	@tests/deps.sh build test
	@+$(MAKE) --no-print-directory all models $(O)/unit/pack_foreign
	@tests/quality/quality.py $(O) $(QUALITY_FORMATS)
	@GLMD_FOREIGN=all $(O)/unit/pack_foreign

demo:
	@tests/deps.sh build
	@+$(MAKE) --no-print-directory all models
	@tests/system/demo.sh $(O)

bindir   := $(prefix)/bin
sbindir  := $(prefix)/sbin
mandir   := $(prefix)/share/man
docdir   := $(prefix)/share/doc/glmd
unitdir  ?= $(prefix)/lib/systemd/system
install: all
	install -d $(addprefix $(DESTDIR),$(bindir) $(sbindir) $(libdir)/pkgconfig $(prefix)/include/glmd $(unitdir) \
	    $(prefix)/lib/udev/rules.d $(prefix)/lib/sysusers.d $(prefix)/lib/tmpfiles.d $(prefix)/lib/glmd \
	    $(docdir)/examples $(foreach s,1 3 5 8,$(mandir)/man$(s)))
	install -m 755 $(O)/glmctl $(addprefix $(O)/,$(TOOLS)) $(DESTDIR)$(bindir)
	install -m 755 $(O)/glmd $(DESTDIR)$(sbindir)
	install -m 755 $(O)/libglmd.so.1 $(DESTDIR)$(libdir)/libglmd.so.$(VERSION)
	ln -sf libglmd.so.$(VERSION) $(DESTDIR)$(libdir)/libglmd.so.1
	ln -sf libglmd.so.1 $(DESTDIR)$(libdir)/libglmd.so
	install -m 644 $(O)/libglmd.a $(DESTDIR)$(libdir)
	$(pc_sed) client/glmd.pc.in > $(DESTDIR)$(libdir)/pkgconfig/glmd.pc
	install -m 644 client/glmd.h $(DESTDIR)$(prefix)/include
	install -m 644 ipc/wire.h ipc/wire_num.h ipc/wire_tlv.h $(DESTDIR)$(prefix)/include/glmd
	for s in 1 3 5 8; do for f in daemon/man/*.$$s client/man/*.$$s; do \
	    if [ -e $$f ]; then install -m 644 $$f $(DESTDIR)$(mandir)/man$$s; fi; done; done
	for f in client/man/*.3; do b=$${f##*/}; for n in $$(sed -n '/^.Sh NAME/,/^.Nd/s/^.Nm \([a-z0-9_]*\).*/\1/p' $$f); do \
	    [ $$n.3 = $$b ] || ln -sf $$b $(DESTDIR)$(mandir)/man3/$$n.3; done; done
	for f in units/*.service units/*.socket; do if [ -e $$f ]; then \
	    sed 's|@sbindir@|$(sbindir)|g' $$f > $(DESTDIR)$(unitdir)/$${f##*/}; fi; done
	for f in units/*.sysusers; do if [ -e $$f ]; then b=$${f##*/}; \
	    install -m 644 $$f $(DESTDIR)$(prefix)/lib/sysusers.d/$${b%.sysusers}.conf; fi; done
	for f in units/*.tmpfiles; do if [ -e $$f ]; then b=$${f##*/}; \
	    install -m 644 $$f $(DESTDIR)$(prefix)/lib/tmpfiles.d/$${b%.tmpfiles}.conf; fi; done
	if [ -e units/glmd.conf ]; then install -m 644 units/glmd.conf $(DESTDIR)$(prefix)/lib/glmd/glmd.conf; fi
	install -m 644 client/examples/*.[ch] $(DESTDIR)$(docdir)/examples
	install -m 755 client/examples/*.py $(DESTDIR)$(docdir)/examples
	install -m 644 udev/*.rules $(DESTDIR)$(prefix)/lib/udev/rules.d
