# What one does with this project. `make demo` and `make test` install what they need first (scripts/setup).

SIZE ?= small
PREFIX ?= /usr/local
IMAGES ?= $(or $(STDCHK_IMAGES),/tmp/stdchk-images)
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: clients-environment help build install wheel demo check test fuzz soak clients bench images peers fmt clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

build: ## the binary: target/release/stdchk, and beside it the library of `stdchk run`
	@scripts/setup build
	cargo build --release --package stdchk --package stdchk-preload

install: ## what `make build` has made, to PREFIX=/usr/local (scripts/install --help says what goes where)
	@scripts/install "$(PREFIX)"

wheel: ## the Python package with the binary in it, to out/wheel (pip install ./python builds it, too)
	@scripts/setup build python
	.venv-python/bin/pip wheel --quiet --no-deps --wheel-dir out/wheel ./python
	@ls out/wheel/*.whl

demo: ## a real job on a local pool is killed, restarted from its checkpoints and compared (DEMO="--help" for options)
	@scripts/setup build mount demo
	cargo build --release --package stdchk --package stdchk-preload
	@scripts/demo/demo $(DEMO)

check: ## formatting, clippy and unit tests: what to run before each commit
	@scripts/setup build python
	@scripts/test --quick

test: ## everything that checks the project
	@scripts/setup build mount demo test python
	@scripts/test

soak: ## the long forms of the tests: 20000 cases of each property, 200 kills, a million file operations (SOAK="--help")
	@scripts/setup build mount
	@scripts/soak $(SOAK)

fuzz: ## every parser of outside bytes, fuzzed for ten minutes each, guided by coverage (FUZZ="--seconds N TARGET...")
	@scripts/setup build
	@scripts/fuzz $(FUZZ)

clients-environment:
	@scripts/setup build mount clients
	@$(MAKE) --no-print-directory wheel
	.venv-clients/bin/pip install --quiet --no-deps --force-reinstall out/wheel/stdchk-*.whl

clients: ## programs too heavy for the test set: PyTorch, Lightning, Hugging Face's Trainer, MPICH, CRIU (downloads 6 GB)
	@$(MAKE) --no-print-directory clients-environment
	scripts/clients/clients .venv-clients/bin/stdchk

bench: ## measurements, and out/bench/report.html (SIZE=tiny, small or full; BENCH="--images DIR")
	@scripts/setup build mount bench
	cargo build --release --package stdchk --package stdchk-preload --package stdchk-bench
	$${CARGO_TARGET_DIR:-target}/release/stdchk-bench --size $(SIZE) $(BENCH)
	@scripts/bench-report

images: ## series of images of running programs, into the folder IMAGES
	@scripts/setup test bench
	scripts/images blast numpy --into $(IMAGES)

peers: ## what users have today beside stdchk: stores, file systems, compressors (SETS=DIR: sets of checkpoint files)
	@scripts/setup build mount bench peers
	cargo build --release --package stdchk
	scripts/bench-peers files
	scripts/bench-peers coded
	scripts/bench-peers images --images $(IMAGES)
	scripts/bench-codecs $(if $(SETS),--sets $(SETS))
	scripts/bench-blast
	@scripts/bench-report

fmt: ## formats all sources
	cargo fmt --all

clean: ## removes everything that was built or installed here
	cargo clean
	rm -rf .venv .venv-python .venv-bench .venv-clients .tools out/criu
