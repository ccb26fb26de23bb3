# Every target works from a fresh clone; `make help` lists them.

CARGO ?= cargo
VENV ?= .venv
PYTEST = $(VENV)/bin/python -m pytest
RESULTS = benches/results
SOAK_MINUTES ?= 30

.PHONY: help setup build test test-rust test-py lint fmt deny layers tidy soak kills
.PHONY: bench-ingest bench-server bench demo clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-14s %s\n", $$1, $$2 }'

setup:  ## install what is missing: Debian packages, Rust toolchain, Python environment
	scripts/setup.sh

build:  ## build the release binaries
	$(CARGO) build --locked --release --bin pagectl --bin pageserver

demo: setup build  ## a pageserver behind a live Postgres, a branch of an earlier moment, every page verified
	scripts/demo.sh

test: setup lint layers tidy deny test-rust test-py  ## all checks and all tests

test-rust:  ## unit and property tests
	$(CARGO) test --locked --workspace --no-fail-fast

test-py: build  ## tests against a real Postgres
	$(PYTEST) test_runner

soak: build  ## mixed load on an attached server for SOAK_MINUTES, then every page is compared
	$(PYTEST) test_runner/regress/test_soak.py --soak-minutes $(SOAK_MINUTES)

kills: build  ## 200 ends of the pageserver at random moments under load, then every page is compared
	$(PYTEST) test_runner/regress/test_crashes.py -k random_moments --kills 200

lint:  ## formatting and clippy; seams are enforced on libraries and binaries
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked --workspace --lib --bins -- -D warnings -D clippy::disallowed_methods

fmt:  ## format all sources
	$(CARGO) fmt --all

deny:  ## licences, bans, sources and advisories of dependencies
	scripts/deny.sh

layers:  ## imports and dependencies against docs/layers.toml
	$(CARGO) run --locked --quiet -p xtask -- layers

tidy:  ## sizes against docs/ratchet.toml
	$(CARGO) run --locked --quiet -p xtask -- tidy

bench-ingest:  ## write path and layer reads against the device's limit; writes benches/results
	benches/run_ingest.sh $(RESULTS)

bench-server:  ## pages over TCP, opening of many layers, WAL intake against a standby; writes benches/results
	benches/run_server.sh $(RESULTS)

bench: bench-ingest bench-server  ## all benchmarks

clean:  ## remove what was built
	$(CARGO) clean
	rm -rf $(VENV) test_output .pytest_cache
