# Every target works from a fresh clone; `make help` lists them.

CARGO ?= cargo
VENV ?= .venv
PYTEST = $(VENV)/bin/python -m pytest
RESULTS = benches/results
SOAK_MINUTES ?= 30
REDO_RESULTS = test_output/redo
FUZZ_SECONDS ?= 60
# Of the simulation.
SEEDS ?= 500
FIRST_SEED ?= 1
# What lives in the worlds: `sim --help` lists them.
WORLD ?= tenants
SIM_PROGRESS ?= target/sim-release-$(WORLD).json
STANDBY_WORLDS = succession succession-moves quorum quorum-moves quorum-slow-disk quorum-takeover quorum-tail
SIMULATED = $(CARGO) run --locked --workspace --profile simulated --quiet --bin sim --
API_EXAMPLES ?= 1000
# Of a fleet, by quorum.
KILLS ?= 500
SEED ?= 20261129
# Tests in Python that run at once: they wait more than they work.
WORKERS ?= 2
# One build for all tests: also the programs that tests in Python run.
TESTED = --locked --workspace --profile tested

# Another kind of machine. Here and not in a file of cargo's, which would change what everybody's cargo does. In the
# tests' profile build scripts and macros are built already; all else is not optimised, to be built fast, and jemalloc
# is kept from the -g3 that it would add.
AARCH64 = --locked --profile tested --target aarch64-unknown-linux-gnu
AARCH64_ENV = CARGO_PROFILE_TESTED_OPT_LEVEL=$(AARCH64_OPT) CARGO_PROFILE_TESTED_DEBUG=0 EXTRA_CFLAGS=-g0 \
	CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu'
AARCH64_OPT = 0
# Under emulation some tests take minutes without.
test-aarch64: AARCH64_OPT = 1
# What has its unit tests run there. Of the engine's others one works with files in all modes: without io_uring, which
# the emulation does not have.
AARCH64_TESTED = postgres_formats wal_decoder redo layer_format pageserver_api utils virtual_file engine

.PHONY: help setup setup-demo build deb test test-build test-rust test-py lint fmt deny layers tidy soak kills
.PHONY: kills-fleet test-daily test-stores test-faults test-api golden golden-journal build-aarch64 test-aarch64
.PHONY: test-all-versions redo-coverage fuzz fuzz-seeds sim sim-release sim-standbys
.PHONY: sim-bugs sim-coverage
.PHONY: bench-ingest bench-server bench-load bench-mixed bench-tiered bench-redo bench-compaction
.PHONY: bench-compaction-postgres bench-social bench-surface bench-swmr bench-memory bench-wide bench-first-copy
.PHONY: bench-attribution bench-ingest-more bench-commit bench-gateway bench-asleep bench-takeover bench-console
.PHONY: bench-replica console test-upgrade
.PHONY: bench-compute bench demo demo-s3 demo-fleet clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "%-18s %s\n", $$1, $$2 }'

setup:  ## install what is missing: Debian packages, Rust toolchain, Python environment
	scripts/setup.sh

setup-demo:  ## install what demos need: no browser, and no drivers of other languages
	scripts/setup.sh --for-demo

build:  ## build the release binaries
	$(CARGO) build --locked --release --bin pagectl --bin pageserver --bin compute-fs

deb: build  ## a Debian package of the release binaries, in target
	scripts/deb.sh

demo: setup-demo build  ## a pageserver behind a live Postgres, an accident undone by a compute, every page verified
	scripts/demo.sh

demo-s3: setup-demo build  ## the same with an S3 server on loopback as the bucket
	DEMO_STORE=weed scripts/demo.sh

demo-fleet: setup-demo build  ## two pageservers, a compute under load, the owner killed: the load goes on
	scripts/demo_fleet.sh

test: setup  ## all checks and all tests: one that fails keeps no other from running
	MAKE="$(MAKE)" scripts/run_all.sh lint layers tidy deny build-aarch64 test-build test-py+test-rust

test-build:  ## build all tests, and what they run
	$(CARGO) test $(TESTED) --no-run

test-rust:  ## unit and property tests
	$(CARGO) test $(TESTED) --no-fail-fast

test-py: test-build  ## tests against a real Postgres
	TEST_PROFILE=tested $(PYTEST) test_runner -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-daily: setup test-build  ## what make test leaves out: the console in a browser, in full; the Helm chart
	scripts/helm.sh >/dev/null
	TEST_PROFILE=tested $(PYTEST) test_runner --daily -m daily -n $(WORKERS) --dist loadfile --no-loadscope-reorder

build-aarch64:  ## the programs for aarch64, not optimised: that they compile and link
	$(AARCH64_ENV) $(CARGO) build $(AARCH64) --bin pagectl --bin pageserver --bin compute-fs

test-aarch64:  ## unit tests of formats, redo and engine, and files, on an emulated aarch64; for each release
	scripts/aarch64.sh run
	$(AARCH64_ENV) $(CARGO) test $(AARCH64) --no-fail-fast --lib $(addprefix -p ,$(AARCH64_TESTED))
	$(AARCH64_ENV) $(CARGO) test $(AARCH64) --no-fail-fast -p engine --test layer_stack_model std_fs

test-all-versions: build  ## redo, files and following of servers of all versions, Postgres' own tests in full
	scripts/postgres_servers.sh
	scripts/postgres_regress.sh
	$(PYTEST) test_runner/regress -k "pg14 or pg15 or pg16 or pg17 or pg18" --pg-versions all \
		--redo-results $(abspath $(REDO_RESULTS))

redo-coverage: test-all-versions  ## docs/redo-coverage.md from what test-all-versions found
	$(VENV)/bin/python scripts/redo_coverage.py $(REDO_RESULTS) docs/redo-coverage.md

soak: build  ## mixed load on a followed server for SOAK_MINUTES, then every page is compared
	$(PYTEST) test_runner/regress/test_soak.py --soak-minutes $(SOAK_MINUTES)

test-stores: build  ## faults of the bucket in full: 100 kills of each kind, a bucket away for ten minutes, real S3
	$(PYTEST) test_runner/regress/test_object_storage.py test_runner/regress/test_disk_budget.py --both-stores \
		--store-operations 40 --store-kills 100 --store-outage-seconds 600

test-faults:  ## every fault at every call of 200 operations on the bucket
	TEST_FAULT_RUNS=17 TEST_FAULT_OPERATIONS=200 $(CARGO) test $(TESTED) --test remote_faults -- --nocapture

test-api: build  ## thousands of calls of every operation of the management interface by a fuzzer, against its document
	$(PYTEST) test_runner/regress/test_openapi.py --api-examples $(API_EXAMPLES)

kills: build  ## 200 ends of the pageserver, 50 of a compute at random moments under load, then every page is compared
	$(PYTEST) test_runner/regress/test_crashes.py -k random_moments --kills 200
	$(PYTEST) test_runner/regress/test_compute_faults.py -k acknowledged --compute-kills 50

kills-fleet: build  ## KILLS (500) kills and partitions of a fleet under load, by quorum: what was acknowledged stays
	$(PYTEST) test_runner/regress/test_fleet_kills.py -s --fleet-kills $(KILLS) --fleet-seed $(SEED)

test-upgrade: setup test-build  ## a fleet goes on with the programs of this commit under load: test-upgrade BASE=COMMIT
	scripts/upgrade.sh $(or $(BASE),$(error BASE names the commit whose programs come first)) $(VENV)/bin/python

sim:  ## SEEDS worlds of servers, disks and buckets in virtual time, each twice; make test-rust runs 500
	SIM_SEEDS=$(SEEDS) SIM_FIRST_SEED=$(FIRST_SEED) $(CARGO) test $(TESTED) --test seeds promises -- --nocapture

sim-release: SEEDS = 200000
sim-release:  ## 200,000 seeds of a WORLD, each once, and what they reached; goes on where it was stopped (SIM_PROGRESS)
	$(SIMULATED) $(FIRST_SEED) --world $(WORLD) --count $(SEEDS) --progress $(SIM_PROGRESS)

sim-standbys: SEEDS = 50000
sim-standbys:  ## 50,000 seeds of the worlds of owners and standbys, in equal parts; goes on where it was stopped
	+set -e; for world in $(STANDBY_WORLDS); do \
		$(MAKE) --no-print-directory sim-release WORLD=$$world SEEDS=$$(($(SEEDS) / $(words $(STANDBY_WORLDS)) + 1)); \
	done

sim-bugs: SEEDS = 500
sim-bugs:  ## how many seeds each bug takes that can be planted
	$(SIMULATED) $(FIRST_SEED) --world $(WORLD) --count $(SEEDS) --bugs

sim-coverage: SEEDS = 10000
sim-coverage:  ## which branches of the code the simulation reaches; writes docs/sim-coverage.md (nightly toolchain)
	SEEDS=$(SEEDS) FIRST_SEED=$(FIRST_SEED) PYTHON=$(VENV)/bin/python scripts/sim_coverage.sh

fuzz:  ## every fuzz target for FUZZ_SECONDS, which make test runs shortly (nightly toolchain, cargo-fuzz)
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz.sh

fuzz-seeds:  ## many seeds for make fuzz, from the WAL of a Postgres 15
	scripts/fuzz_seeds.sh

golden:  ## a store of today's formats in pageserver/tests/golden/NAME: make golden NAME=2026-11
	test -n "$(NAME)" && test ! -e pageserver/tests/golden/$(NAME)
	GOLDEN=$(abspath pageserver/tests/golden/$(NAME)) \
		$(CARGO) test $(TESTED) --test remote_tenants golden::write_one -- --ignored

golden-journal:  ## a journal of today's format in journal/tests/golden/NAME: make golden-journal NAME=2026-11
	test -n "$(NAME)" && test ! -e journal/tests/golden/$(NAME)
	GOLDEN_JOURNAL=$(NAME) $(CARGO) test $(TESTED) --test golden a_golden_journal -- --ignored

lint:  ## formatting and clippy; libraries and programs deny what goes around the seams
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(TESTED) --all-targets -- -D warnings

console:  ## what the console uses from npm, copied anew after a change of console/package-lock.json (npm)
	console/vendor.sh

fmt:  ## format all sources
	$(CARGO) fmt --all

deny:  ## licences, bans, sources and advisories of dependencies
	scripts/deny.sh

layers:  ## imports and dependencies against docs/layers.toml
	$(CARGO) run --locked --profile tested --quiet -p xtask -- layers

tidy:  ## sizes against docs/ratchet.toml
	$(CARGO) run --locked --profile tested --quiet -p xtask -- tidy

bench-ingest:  ## write path and layer reads against the device's limit; writes benches/results
	benches/run_ingest.sh $(RESULTS)

bench-server:  ## pages over TCP, opening of many layers, WAL intake against a standby; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_server.sh $(RESULTS)

bench-load:  ## pages over TCP by 1 to 128 connections, beside an echo of as many bytes; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_load.sh $(RESULTS)

bench-mixed:  ## reads at the head beside pgbench, whole backups; needs 5 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh mixed $(RESULTS)

bench-tiered:  ## pages of layers in a bucket, scans, a start on an empty disk, uploads; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_tiered.sh $(RESULTS)

bench-redo:  ## redo of recorded WAL by record type, chain and core, against a stock server; writes benches/results
	benches/run_redo.sh $(RESULTS)

bench-compaction:  ## reads, writes and space while a history grows, with compaction and without; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_compaction.sh $(RESULTS)

bench-compaction-postgres: build  ## the same with a Postgres that writes 20 GB of WAL, verified; needs 110 GB
	$(VENV)/bin/python benches/compaction.py --out $(RESULTS)
	$(VENV)/bin/python benches/report_compaction_postgres.py $(RESULTS)

bench-compute:  ## first answer, disk, scans and pgbench of computes; needs 50 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_compute.sh $(RESULTS)

bench-social:  ## six queries of a social network from S3, by what is in memory; keeps 3 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh social $(RESULTS)

bench-surface:  ## open, fresh read, write, visible by place of the bucket and size; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh surface $(RESULTS)

bench-swmr:  ## one writer beside head and pinned readers by place of the bucket; needs 12 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh swmr $(RESULTS)

bench-memory:  ## memory idle, loaded and while WAL comes, growth, recovery; needs 30 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh memory $(RESULTS)

bench-wide:  ## loads and queries of wide rows with 14 indexes, compute and plain; needs 10 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh wide $(RESULTS)

bench-first-copy:  ## the first copy of a server, beside pg_basebackup; needs 30 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh first_copy $(RESULTS)

bench-attribution:  ## on what the write path spends its time, by place of the bucket; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh attribution $(RESULTS)

bench-commit:  ## what a commit waits for: a journal beside a stock standby; needs 30 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh commit $(RESULTS)

bench-gateway:  ## waking branches, what a session through a gateway loses, memory; needs 60 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh gateway $(RESULTS)

bench-asleep:  ## branches whose computes sleep: processes, memory, waking at once; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh asleep $(RESULTS)

bench-takeover:  ## from the kill of an owner to the first page and commit; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh takeover $(RESULTS)

bench-replica:  ## replicas of a compute: first answer, lag, promotion; needs 60 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh replica $(RESULTS)

bench-console:  ## first paint, weight and frames of the console in a browser; needs 5 GB; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_python.sh console $(RESULTS)

bench-ingest-more:  ## reads beside writes, timelines at once, image layers, downloads; writes benches/results
	PYTHON=$(VENV)/bin/python benches/run_ingest_more.sh $(RESULTS)

bench-compare:  ## the commits BASE and HEAD, measured in turn in one run: make bench-compare BASE=main~10
	$(VENV)/bin/python benches/compare.py $(or $(BASE),$(error BASE names the commit to compare with)) $(or $(HEAD),HEAD)

BENCHES = bench-ingest bench-server bench-load bench-mixed bench-tiered bench-redo bench-compaction bench-compute \
	bench-social bench-surface bench-swmr bench-memory bench-wide bench-first-copy bench-attribution \
	bench-ingest-more bench-commit bench-gateway bench-asleep bench-takeover bench-console bench-replica
bench: $(BENCHES)  ## all but the one of 110 GB

clean:  ## remove what was built
	$(CARGO) clean
	rm -rf $(VENV) test_output .pytest_cache
