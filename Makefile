# Every target does its own set-up: on a bare Debian or Ubuntu machine with Rust, `make demo` and `make test` are enough.
PLUGINS_DIST := plugins/dist
MODELS := .models
MODEL := $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
PORTOLAN := $(or $(CARGO_TARGET_DIR),target)/debug/portolan
ARGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## What can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: plugins $(MODEL) ## Two sites, two tenants and a tour; ARGS=--once exits after it
	cargo build --bin portolan
	@$(PORTOLAN) demo --model $(MODEL) --plugins $(PLUGINS_DIST) $(ARGS)

.PHONY: demo-fleet
demo-fleet: $(MODEL) ## Three processes and a NATS server, and a tour; ARGS="--cluster --once": three servers, exits after it
	cargo build --bin portolan
	@nats=$$(tests/fetch-tool nats-server nats-server) && \
		PATH=$$PATH:$$nats $(PORTOLAN) demo-fleet --model $(MODEL) $(ARGS)

.PHONY: test
test: plugins $(MODEL) ## Every test
	tests/run

.PHONY: test-languages
test-languages: ## Policies in four languages, made, built and compared; brings the toolchains
	cargo build --bin portolan
	tests/languages/run

.PHONY: chaos
chaos: plugins ## Schedules of faults, by far more than `make test` has; SCHEDULES=N and PROCESSES=N, or SEED=N for one
	tests/chaos/run $(or $(SCHEDULES),10000) $(or $(PROCESSES),40) $(SEED)

.PHONY: bench
bench: plugins ## Decisions, transport and prefix index as tables, beside their peers where those were brought
	tests/bench/run

.PHONY: bench-router-peers
bench-router-peers: plugins $(MODEL) ## The gateway beside other routers, before the same two engines, as tables; brings them
	tests/bench/peers-router/run

.PHONY: bench-transport-peers
bench-transport-peers: ## The transport beside iperf3, Mooncake and NIXL, as a table; brings them
	tests/bench/peers-transport/run

.PHONY: bench-index-peers
bench-index-peers: ## The prefix index beside another router's, on one trace; builds that too
	CARGO_BUILD_JOBS=$(or $(CARGO_BUILD_JOBS),1) cargo run --release --quiet \
		--manifest-path tests/bench/peers-index/Cargo.toml -- $(or $(BLOCKS),2000000)

.PHONY: bench-engine-peers
bench-engine-peers: $(MODEL) ## The native engine beside llama.cpp on one GGUF file, as a table; brings it
	tests/bench/peers-engine/run

.PHONY: check-nixl
check-nixl: ## The build with NIXL: brings libclang and the library, builds and tests it
	tests/nixl

.PHONY: check-cuda
check-cuda: $(MODEL) ## The build with CUDA: brings nvcc, compiles it, compares with the CPU where a GPU is
	tests/cuda

.PHONY: check-engines
check-engines: $(MODEL) ## Engines that are not ours, the real ones: brings llama.cpp's server and drives it
	tests/engines/check

.PHONY: test-vllm
test-vllm: ## Two real vLLMs (5.9 GB) at two sites, KV from one to the other; brings them
	tests/engines/vllm

.PHONY: lint
lint: ## Formatting and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

.PHONY: plugins
plugins: ## The shipped policies as WebAssembly components in $(PLUGINS_DIST)
	@PLUGINS_DIST=$(CURDIR)/$(PLUGINS_DIST) plugins/setup.sh

$(MODEL):
	@tests/fetch-model $@
