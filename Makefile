# The same verbs by hand and in CI. `make help` lists them.
CARGO ?= cargo
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# Tests mostly wait for processes.
export RUST_TEST_THREADS ?= $(shell expr 4 \* $$(getconf _NPROCESSORS_ONLN))

# The program that ships and is measured is linked statically where the system has a static C library: the dynamic linker
# would execute a quarter of the instructions of a start. It has a fixed address: relocating itself would execute as many
# again, and write to half a megabyte in each process; its heap and stacks still have random addresses. Naming the target
# keeps the flags from procedural macros, which cannot be static.
HOST = $(shell rustc --print host-tuple)
SHIPPED = --target $(HOST) $(if $(wildcard $(shell cc -print-file-name=libc.a)),\
	--config 'target.$(HOST).rustflags="-Ctarget-feature=+crt-static -Crelocation-model=static"')

.PHONY: help build demo test test-portable test-arm64 test-windows soak fuzz lint bless bench cost test-node test-agents test-versions test-vscode check-targets dist test-dist version

help: ## what can be done here
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

build: ## the program as it ships, in target/HOST/release: static where the system has a static C library
	$(CARGO) build --release --locked $(SHIPPED)

demo: ## build, hold a short conversation, and print it
	@$(CARGO) run --quiet -- demo

test: ## all tests; TEST_GIT names another git in which no setting may run a program, TEST_SHELL_PROGRAMS a folder of programs that hook into shells
	$(CARGO) test --tests --benches

test-portable: ## all tests with the halves of other Unix systems (macOS) in place of Linux's: no /proc, inotify, pidfd or openat2; PORTABLE_TESTS="acp git" names some
	$(CARGO) test --tests --features portable -- $(PORTABLE_TESTS)

# Optimised, or time limits of the program would be reached under an emulator.
test-arm64: ## all tests on Linux arm64, under an emulator, where one can be had; ARM_TESTS="--lib" or "--test it guard" names some
	@export CROSS_DIR="$${CROSS_DIR:-$(TARGET)/cross}" QEMU_DIR="$${QEMU_DIR:-$(TARGET)/qemu}"; \
	{ .ci/cross && . "$$CROSS_DIR/env" && .ci/qemu; } || { echo "skipped: nothing is run on arm64"; exit 0; }; \
	CARGO_TARGET_DIR=$(TARGET)/arm64 CARGO_PROFILE_DEV_OPT_LEVEL=1 RUSTFLAGS="-Clink-self-contained=no -Crelocation-model=static" \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER="$$QEMU_DIR/run" cargo-zigbuild test --locked \
		$(or $(ARM_TESTS),--tests) -Zbuild-std=std,panic_abort --target aarch64-unknown-linux-musl

# The program is unoptimised, and shares what is built with check-targets.
test-windows: ## the program of Windows under wine: GROUPS of tests/windows/run.py, all; WINDOWS_GIT names the folder of git.exe of a Git for Windows
	@export CROSS_DIR="$${CROSS_DIR:-$(TARGET)/cross}" WINE_DIR="$${WINE_DIR:-$(TARGET)/wine}"; \
	{ .ci/cross && . "$$CROSS_DIR/env" && .ci/wine; } || { echo "skipped: the program of Windows is not run"; exit 0; }; \
	CARGO_TARGET_DIR=$(TARGET)/checked cargo-zigbuild build --quiet --locked --bin ahp-sidecar \
		-Zbuild-std=std,panic_abort --target x86_64-pc-windows-gnu && \
	python-zig cc -target x86_64-windows-gnu -O1 -o $(TARGET)/checked/agent.exe tests/windows/agent.c && \
	WINE="$$WINE_DIR/wine" python3 -B tests/windows/run.py \
		$(TARGET)/checked/x86_64-pc-windows-gnu/debug/ahp-sidecar.exe $(TARGET)/checked/agent.exe $(GROUPS)

test-versions: ## the official crates of every released version judge the host: JUDGE_CASES schedules from JUDGE_SEED; and the cases of the specification, where AHP_CASES names `types/test-cases` of its repository
	$(CARGO) test --test it upstream # builds the program, from what the other tests have built
	failed=0; for judge in tests/judges/*/Cargo.toml; do \
		AHP_SIDECAR=$(TARGET)/debug/ahp-sidecar RUST_BACKTRACE=0 \
			$(CARGO) test --quiet --locked --manifest-path $$judge --target-dir $(TARGET) || failed=1; \
	done; exit $$failed

soak: ## the crash test for longer: CRASH_KILLS kills (5000) and ACP_CRASH_KILLS (500), from the seed CRASH_SEED (the clock's); and 100,000 random changes of files: FILE_CASES schedules (3600); and TERMINAL_BYTES through a terminal (256000000) and TERMINAL_RESIZES of one in each shell (10000)
	CRASH_KILLS=$${CRASH_KILLS:-5000} ACP_CRASH_KILLS=$${ACP_CRASH_KILLS:-500} $(CARGO) test --test it crash -- --nocapture
	FILE_CASES=$${FILE_CASES:-3600} $(CARGO) test --lib files::tests::model
	TERMINAL_BYTES=$${TERMINAL_BYTES:-256000000} TERMINAL_RESIZES=$${TERMINAL_RESIZES:-10000} $(CARGO) test --test it process::programs

fuzz: ## parsers of what outsiders send against random changes of the fixtures, FUZZ_SECONDS (60) for each of FUZZ_TARGETS (all), and the core against FUZZ_SCHEDULES (20000) of messages and failures, all from FUZZ_SEED (the clock's)
	seed=$${FUZZ_SEED:-$$(date +%s)}; \
	FUZZ_SECONDS=$${FUZZ_SECONDS:-60} FUZZ_SEED=$$seed $(CARGO) test --profile fuzz --test fuzz && \
	PROPTEST_CASES=$${FUZZ_SCHEDULES:-20000} PROPTEST_RNG_SEED=$$seed $(CARGO) test --profile fuzz --test it laws::

lint: ## formatting and clippy, warnings denied; licences, bans and sources of the dependencies, if cargo-deny is there
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo-deny --log-level error check licenses bans sources; \
	else echo "skipped: cargo-deny is not installed, so licences of dependencies are not checked"; fi

# No program of it is run, so C is not optimised.
check-targets: ## type-check the program for every platform of .dist/targets, and link it for macOS, where the cross toolchain can be had
	@export CROSS_DIR="$${CROSS_DIR:-$(TARGET)/cross}" CARGO_TARGET_DIR=$(TARGET)/checked; \
	.ci/cross || { echo "skipped: other platforms are not checked"; exit 0; }; \
	. "$$CROSS_DIR/env"; options="--quiet --locked --bin ahp-sidecar -Zbuild-std=std,panic_abort"; \
	for library in libsqlite3-sys zstd-sys; do \
		options="$$options --config profile.dev.package.$$library.opt-level=0"; \
	done; \
	cargo-zigbuild check $$options $$(awk '/^[^#]/ && !/-apple-/ {print "--target", $$2}' .dist/targets) && \
	RUSTFLAGS="-Clink-arg=-F$(CURDIR)/.dist/frameworks" \
		cargo-zigbuild build $$options $$(awk '/-apple-/ {print "--target", $$2}' .dist/targets)

dist: ## build and pack the program for every platform of .dist/targets, or for DIST alone ("linux-x64"), into target/dist
	@export CROSS_DIR="$${CROSS_DIR:-$(TARGET)/cross}"; .ci/cross && . "$$CROSS_DIR/env" && \
		python3 -B .dist/build.py $(TARGET)/dist $(DIST)

test-dist: ## install what `make dist` made, each kind into an empty folder and offline, and hold a conversation through it
	@export QEMU_DIR="$${QEMU_DIR:-$(TARGET)/qemu}" WINE_DIR="$${WINE_DIR:-$(TARGET)/wine}"; .ci/qemu; \
		python3 -B .dist/test/run.py $(TARGET)/dist $(TARGET)/vsix/tools

version: ## raise the version everywhere: VERSION=0.2.0
	@python3 -B .dist/version.py $(VERSION)

bless: ## rewrite the golden transcripts under fixtures/ to what the host says now
	BLESS=1 $(CARGO) test --test it transcripts

bench: ## measure speed and memory, and print a table; PARTS="pipe windows" names parts of it
	$(CARGO) bench $(SHIPPED) --bench sidecar -- $(PARTS)

cost: ## count instructions, where valgrind is there, beside tests/bench/cost.toml; fails where one is more than 5 % over
	$(CARGO) bench $(SHIPPED) --bench sidecar -- cost

test-node: ## run the example of the README through every way that a turn ends, if node is there
	@if command -v node >/dev/null; then \
		$(CARGO) build --quiet && python3 -B tests/agents/example.py $(TARGET)/debug/ahp-sidecar; \
	else echo "skipped: node is not installed"; fi

test-agents: ## real agents from npm behind the host and under `run`, against a scripted model: AGENTS (claude opencode), with --runs under `run` alone, if node is there
	@if command -v node >/dev/null && command -v npm >/dev/null && command -v python3 >/dev/null; then \
		$(CARGO) build --quiet && python3 -B tests/agents/run.py $(TARGET)/debug/ahp-sidecar $(TARGET)/agents $(AGENTS); \
	else echo "skipped: node, npm or python3 is not installed"; fi

test-vscode: ## the real VS Code (npm's code-server) in a headless Chromium, against the host: SCENES of tests/vscode/scenes.py, all
	@if command -v node >/dev/null && command -v npm >/dev/null && command -v python3 >/dev/null; then \
		$(CARGO) build --quiet && \
		$(CARGO) build --quiet --locked --manifest-path tests/vscode/official/Cargo.toml --target-dir $(TARGET)/judges && \
		python3 -B tests/vscode/run.py $(TARGET)/debug/ahp-sidecar $(TARGET)/judges/debug/official $(TARGET)/vscode $(TARGET)/agents $(SCENES); \
	else echo "skipped: node, npm or python3 is not installed"; fi
