# Two commands do everything on a fresh Debian machine, with or without root:
#   make run     sets up, builds, and shows the switch at work on real traffic
#   make test    sets up and passes all tests
# The laboratory has one of its own:
#   make run-lab sets up its Python environment and reproduces the paper on the traces at hand
SHELL := /bin/bash
CARGO ?= cargo
# Programs that scripts/setup unpacked for an ordinary user.
export PATH := $(PATH):$(CURDIR)/.deps/usr/sbin:$(CURDIR)/.deps/usr/bin:/usr/sbin:/sbin
# End-to-end tests wait for half of their time.
export RUST_TEST_THREADS ?= $(shell echo $$(( $$(nproc) * 3 / 2 )))
export LD_LIBRARY_PATH := $(LD_LIBRARY_PATH):$(CURDIR)/.deps/usr/lib/x86_64-linux-gnu

# Traces for the laboratory: those beside the checkout, or the excerpts that lie in it.
LAB_TRACES ?= $(firstword $(wildcard ../shared/data) tests/traces)
LAB_REPORT ?= lab-report

# End-to-end tests with each kind of flow table: a part for every day, and the long form.
FLOW_TABLE_TESTS := http::requests_of http::files_of restart::connections_from \
	refusals::connections_beyond
FLOW_TABLE_ALL := flow_tables:: http:: restart:: refusals:: servers::

.PHONY: help run run-lab build stacks install uninstall test test-fastpath test-flow-tables test-kernels test-python test-long bench \
	bench-core bench-lab lint setup-run setup-test setup-bench setup-lab doc clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup-run:
	@scripts/setup run
setup-test:
	@scripts/setup test
setup-bench:
	@scripts/setup bench
setup-lab:
	@scripts/setup lab

run: build ## build and demonstrate the switch (DEMO_ARGS="--once" exits by itself)
	./target/release/fairlead demo $(DEMO_ARGS)

build: setup-run ## build the release binary
	$(CARGO) build --release --locked -p fairlead -p fairlead-bypass

stacks: ## build the workloads that `fairlead lab protocol` traces
	@scripts/stacks

install: ## install program, manual pages, completions, systemd unit and examples under PREFIX (/usr/local), after `make build`
	@scripts/install

uninstall: ## remove what `make install` installed
	@scripts/install uninstall

run-lab: setup-lab ## install the laboratory into .venv-lab and reproduce the paper on available traces
	@scripts/lab-venv run
	.venv-lab/bin/fairlead-lab paper --out $(LAB_REPORT) $(LAB_TRACES)

lint: ## check formatting and run clippy, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

test: setup-test lint ## run all tests; tests without the necessary privileges are reported as skipped
	@scripts/skipped forget
	$(CARGO) build --workspace --locked
	@scripts/stacks
	$(CARGO) test --workspace --locked --no-fail-fast; status=$$?; \
		$(MAKE) --no-print-directory test-fastpath || status=1; \
		scripts/test-kernels || status=1; \
		$(MAKE) --no-print-directory test-python || status=1; scripts/skipped; exit $$status

test-fastpath: ## run the end-to-end tests on the best fast path of this machine
	@# These choose tc, or all ways, by themselves where none of the kernel's is named, so that was done already.
	FAIRLEAD_E2E_MODE=auto $(CARGO) test --workspace --test e2e --locked --no-fail-fast -- --skip restart:: --skip reload:: \
		--skip modes:: --skip straight:: --skip flow_tables::
	@# Of XDP a part (all of it: test-long): requests, restarts, reloads, comings and goings, captures, floods.
	FAIRLEAD_E2E_MODE=xdp $(CARGO) test --workspace --test e2e --locked --no-fail-fast -- \
		http:: restart:: reload:: lifecycle:: capture::both flood:: handoff::
	FAIRLEAD_E2E_MODE=xdp-generic $(CARGO) test --workspace --test e2e --locked --no-fail-fast -- http:: restart::
	@# The other kinds of flow table, a part; all of it is in test-long.
	for kind in lru-hash tcb-cache; do \
		FAIRLEAD_E2E_MODE=tc FAIRLEAD_E2E_FLOW_TABLE=$$kind $(CARGO) test --workspace --test e2e \
		--locked --no-fail-fast -- $(FLOW_TABLE_TESTS) || exit 1; done

test-flow-tables: ## run the end-to-end tests with the other kinds of flow table
	status=0; for kind in lru-hash tcb-cache; do for mode in tc xdp-generic; do \
		FAIRLEAD_E2E_MODE=$$mode FAIRLEAD_E2E_FLOW_TABLE=$$kind $(CARGO) test --release \
		--workspace --test e2e --locked --no-fail-fast -- $(FLOW_TABLE_ALL) || status=1; \
		done; done; exit $$status

test-kernels: setup-test ## run all end-to-end tests on Linux 6.1 and 6.12 in virtual machines (hours)
	scripts/test-kernels all

test-python: setup-lab ## build, install and test the Python package
	@mkdir -p target; scripts/lab-venv test; code=$$?; \
	if [ $$code = 0 ]; then .venv-lab-test/bin/python -m pytest python; \
	elif [ $$code = 3 ]; then \
		echo "the tests of the Python package: no virtual environment" | tee -a target/skipped-tests; \
	else exit $$code; fi

test-long: setup-test lint ## run the long tests: more seeds, a minute of fuzzing per target, larger transfers, all XDP modes
	@scripts/skipped forget
	$(CARGO) build --release --workspace --locked
	FAIRLEAD_SIM_SEEDS=$${FAIRLEAD_SIM_SEEDS:-4096} FAIRLEAD_LONG=1 FAIRLEAD_SOAK_SECONDS=$${FAIRLEAD_SOAK_SECONDS:-600} \
		$(CARGO) test --release --workspace --locked --no-fail-fast; status=$$?; \
		for mode in auto xdp xdp-generic; do FAIRLEAD_E2E_MODE=$$mode \
			$(CARGO) test --release --workspace --test e2e --locked --no-fail-fast || status=1; \
		done; $(MAKE) --no-print-directory test-flow-tables || status=1; \
		scripts/test-kernels all || status=1; \
		scripts/skipped; exit $$status
	$(CARGO) run --locked -p fairlead-fuzz -- --all --seconds $${FAIRLEAD_FUZZ_SECONDS:-60} # with debug assertions

bench-core: ## benchmark speed and memory of the core
	$(CARGO) run --release --locked -p fairlead-bench -- core --record bench/records

bench: setup-bench bench-core ## benchmark the core, the switch against HAProxy, nginx and plain forwarding, and the laboratory
	$(CARGO) build --release --locked -p fairlead -p fairlead-bench
	for what in "peers" "peers --offloads off" "peers --mode engine" cost open flood; do \
		./target/release/fairlead-bench $$what --record bench/records || exit 1; done
	$(MAKE) --no-print-directory bench-lab

bench-lab: setup-lab ## benchmark the laboratory against libCacheSim's Python package
	@scripts/lab-venv bench
	.venv-lab/bin/python bench/lab.py --record bench/records

doc: ## build the API documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

clean: ## remove build results
	$(CARGO) clean
	rm -rf .deps .venv-lab .venv-lab-test
