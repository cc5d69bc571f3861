# What one does with this project. `make demo` and `make test` install what they need first (scripts/setup).

SIZE ?= small
export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help build demo test bench fmt clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

build: ## the binary: target/release/stdchk, and beside it the library of `stdchk run`
	@scripts/setup build
	cargo build --release --package stdchk --package stdchk-preload

demo: ## a real job on a local pool is killed, restarted from its checkpoints and compared (DEMO="--help" for options)
	@scripts/setup build mount demo
	cargo build --release --package stdchk --package stdchk-preload
	@scripts/demo/demo $(DEMO)

test: ## everything that checks the project
	@scripts/setup build mount demo test
	@scripts/test

bench: ## measurements: a JSON file and a table each (SIZE=tiny, small or full)
	@scripts/setup build mount bench
	cargo build --release --package stdchk --package stdchk-preload
	cargo run --release --package stdchk-bench -- --size $(SIZE)

fmt: ## formats all sources
	cargo fmt --all

clean: ## removes everything that was built or installed here
	cargo clean
	rm -rf .venv
