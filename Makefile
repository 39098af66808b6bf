# Two commands do everything on a fresh Debian machine, with or without root:
#   make run     sets up, builds, and shows the switch at work on real traffic
#   make test    sets up and passes all tests
SHELL := /bin/bash
CARGO ?= cargo
# Programs that scripts/setup unpacked for an ordinary user.
export PATH := $(PATH):$(CURDIR)/.deps/usr/sbin:$(CURDIR)/.deps/usr/bin:/usr/sbin:/sbin
export LD_LIBRARY_PATH := $(LD_LIBRARY_PATH):$(CURDIR)/.deps/usr/lib/x86_64-linux-gnu

.PHONY: help run test test-long bench bench-core lint setup-run setup-test setup-bench doc clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup-run:
	@scripts/setup run
setup-test:
	@scripts/setup test
setup-bench:
	@scripts/setup bench

run: setup-run ## build and show the switch at work (DEMO_ARGS="--once" ends by itself)
	$(CARGO) build --release --locked -p fairlead
	./target/release/fairlead demo $(DEMO_ARGS)

lint: ## formatting and clippy, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

test: setup-test lint ## every test; what needs rights that are missing is skipped aloud
	@scripts/skipped forget
	$(CARGO) build --workspace --locked
	$(CARGO) test --workspace --locked --no-fail-fast; status=$$?; scripts/skipped; exit $$status

test-long: setup-test lint ## the long forms: more seeds, a minute of fuzzing a target, larger transfers
	@scripts/skipped forget
	$(CARGO) build --release --workspace --locked
	FAIRLEAD_SIM_SEEDS=$${FAIRLEAD_SIM_SEEDS:-4096} FAIRLEAD_LONG=1 \
		$(CARGO) test --release --workspace --locked --no-fail-fast; \
		status=$$?; scripts/skipped; exit $$status
	$(CARGO) run --locked -p fairlead-fuzz -- --all --seconds $${FAIRLEAD_FUZZ_SECONDS:-60} # with debug assertions

bench-core: ## speed and memory of the core alone
	$(CARGO) run --release --locked -p fairlead-bench -- core --record bench/records

bench: setup-bench bench-core ## the core, then the TUN path against HAProxy
	$(CARGO) build --release --locked -p fairlead -p fairlead-bench
	./target/release/fairlead-bench peers --record bench/records

doc: ## API documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

clean: ## what was built and unpacked
	$(CARGO) clean
	rm -rf .deps
