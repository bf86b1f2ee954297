# The commands of the project; `make` lists them. ARGS is passed on: make run ARGS='--workers 8', make test ARGS=retry

.DEFAULT_GOAL := help
.PHONY: help deps clocks contract browser drivers run chat test test-fast test-long test-mysql test-clients test-packages bench compare \
	chaos mutants check check-deploy features deny publish-check package format build release clean cargo rustfmt clippy pages python

INSTALL := internal/services/install.sh
ARGS ?=
# Tests wait more than they work: five times as many at a time as there are cores.
export RUST_TEST_THREADS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 5)
# The modules of the suite that `make test-fast` runs.
FAST := $(addsuffix ::,api api_keys attempt_logs audit change client engine events examples explain kinds layering \
	limits logs metrics mutations openapi panics prose readme report retries runners search security store)
# Without debug assertions, clippy counts larger futures than it does with them.
CHECKED := CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=true
SEED ?=
MINUTES ?=
STORE ?=
INDEX ?=

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Install the MariaDB and Redis server binaries if they are missing (no system service)
	@sh $(INSTALL)

run: deps cargo ## Start tickr with private servers and a few sample jobs
	@cargo run -- dev $(ARGS)

chat: deps cargo ## Start the chat of examples/chat on private servers, with two users to try it
	@cargo run --example chat -- --private .tickr/chat

test: deps clocks contract browser drivers cargo ## Run every test against private MariaDB and Redis servers
	@$(if $(ARGS),cargo test $(ARGS),sh tests/all.sh)

test-fast: deps cargo ## Run the unit tests and the tests without outages, browsers and floods: the inner loop
	@cargo test --lib --bins
	@cargo test --test suite -- $(FAST)

test-long: deps clocks contract browser drivers cargo ## Run the tests that take a machine for minutes, by module: make test-long ARGS=callbacks::
	@[ -n '$(ARGS)' ] || { echo 'name the tests, such as ARGS=callbacks::; CONTRIBUTING.md lists them' >&2; exit 1; }
	TICKR_TEST_FULL=1 cargo test --test suite -- --ignored --nocapture --test-threads 1 $(ARGS)

test-mysql: deps clocks contract browser drivers cargo ## Run every test against a private MySQL server, fetched once
	@mysqld=$$(sh $(INSTALL) --mysql) && export TICKR_MYSQLD=$$mysqld && $(if $(ARGS),cargo test $(ARGS),sh tests/all.sh)

test-clients: deps cargo ## Run the tests of the libraries in clients/, each against a real server: make test-clients ARGS='php go'
	@[ -z "$$TICKR_INSTALL_LANGUAGES" ] || sh $(INSTALL) --languages
	@TICKR_PYTHON=$$(sh $(INSTALL) --client-python || true) sh tests/clients.sh $(ARGS)

bench: deps cargo ## Measure this build beside the bare store: make bench ARGS='drain flow --repeat 5', or ARGS='all --short'
	@cargo run --release -- bench $(ARGS)

compare: python cargo ## Measure tickr beside other job runners: make compare ARGS='--only tickr,bullmq --reps 1', or ARGS=--smoke
	@python3 -B benches/peers/compare.py $(ARGS)

chaos: deps clocks cargo ## Break servers, connections and runners under load: make chaos SEED=42 MINUTES=10 STORE=galera INDEX=sentinel
	@CHAOS_SEED=$(SEED) CHAOS_MINUTES=$(MINUTES) CHAOS_STORE=$(STORE) CHAOS_INDEX=$(INDEX) CHAOS_TELL=1 cargo test --test chaos

mutants: python deps clocks contract browser drivers cargo ## Take out each safeguard in turn and see its test turn red: all, or those of ARGS
	@$(if $(ARGS),sh tests/mutations.sh $(ARGS),python3 tools/mutants.py)

check: cargo rustfmt clippy pages ## Check the formatting, the lints and the documentation, of Rust and of the dashboard
	cargo fmt --all --check
	$(CHECKED) cargo clippy --all-targets -- -D warnings
	$(CHECKED) RUSTDOCFLAGS='-D warnings' cargo doc --no-deps

features: cargo clippy ## Check the crate without its features, and with each of them alone
	@for features in '' $$(sed -n '/^\[features\]/,/^\[lib\]/s/^\([a-z]*\) = .*/\1/p' Cargo.toml | grep -vx default); do \
		echo "features: $${features:-none}"; \
		cargo clippy --quiet --package tickr --lib --bins --no-default-features --features "$$features" $(ARGS) -- -D warnings || exit 1; \
	done

deny: cargo ## Check the licences and advisories of the dependencies
	@cargo deny --version >/dev/null 2>&1 || \
		{ echo 'cargo-deny is missing; install it with: cargo install --locked cargo-deny' >&2; exit 1; }
	cargo deny check $(ARGS)

publish-check: cargo ## Package and build every crate as a registry would get it; nothing is uploaded
	cargo publish --workspace --dry-run --locked $(ARGS)

package: python ## Make the packages that a team without Rust installs: target/packages. TICKR_BINARY=… takes a binary
	@sh tools/package.sh

test-packages: deps cargo ## Install the packages of `make package` in chroots, as root, and reach a completed job with each
	@[ "$$(id -u)" = 0 ] || { echo 'chroots need root: sudo make test-packages' >&2; exit 1; }
	cargo test --test suite -- --ignored --nocapture --test-threads 1 packages::

check-deploy: ## Render the Helm chart and hold every object against the schemas: make check-deploy ARGS=--write
	@mkdir -p target && tools=$$(sh $(INSTALL) --deploy-checks) && $$tools/bin/python -B deploy/check/render.py $(ARGS) >target/manifests.jsonl && \
		node deploy/check/validate.mjs $$tools <target/manifests.jsonl

format: cargo rustfmt ## Bring Rust and the dashboard's files into their format
	cargo fmt --all
	@biome=$$(sh $(INSTALL) --biome) && cd internal/dashboard && $$biome check --write --colors=off

build: cargo ## Build for development
	cargo build $(ARGS)

release: cargo ## Build for production, for this machine: target/release/tickr
	cargo build --release $(ARGS)

clean: cargo ## Remove what was built and the data of `make run`
	cargo clean
	rm -rf .tickr

# What has to be there first, each with the line that brings it.
cargo:
	@command -v cargo >/dev/null || { echo 'cargo is missing; install Rust from https://rustup.rs' >&2; exit 1; }

rustfmt clippy: cargo
	@cargo $(subst rustfmt,fmt,$@) --version >/dev/null 2>&1 || \
		{ echo 'cargo $(subst rustfmt,fmt,$@) is missing; install it with: rustup component add $@' >&2; exit 1; }

python:
	@command -v python3 >/dev/null || { echo 'python3 is missing; install the package python3' >&2; exit 1; }

# The dashboard's files are held to one format as Rust is. Where the program cannot be had, this says so and goes on.
pages:
	@if biome=$$(sh $(INSTALL) --biome); then (cd internal/dashboard && $$biome ci --colors=off); \
	else echo 'the format of the dashboard was not checked' >&2; fi

# Some tests turn the clock of one process. There is no library for that on macOS, where they say so. Without a network
# they are skipped if TICKR_OFFLINE is set.
clocks:
	@[ "$$(uname -s)" = Darwin ] || sh $(INSTALL) --faketime >/dev/null || true

# One test holds the API against its document with a program from the Python package index. It says so when it is missing.
contract:
	@[ -n "$$TICKR_OFFLINE" ] || sh $(INSTALL) --schemathesis >/dev/null || true

# The tests of the dashboard drive a browser. Where there is none and none can be had, they say so and are skipped.
browser:
	@[ -n "$$TICKR_OFFLINE" ] || { sh $(INSTALL) --axe; sh $(INSTALL) --chromium; } >/dev/null || true

# One test writes rows of the outbox from programs in other languages: those whose language is there. It says which not.
drivers:
	@[ -n "$$TICKR_OFFLINE" ] || for language in python node perl java; do sh $(INSTALL) --driver $$language; done >/dev/null 2>&1 || true
