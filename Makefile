CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/foo-controller
DENY := $(CACHE)/cargo-deny-0.20.2
TARGET := $(or $(CARGO_TARGET_DIR),target)
# With an example, cargo takes the same features as for tests, and compiles nothing twice.
BUILD := cargo build --locked --workspace --example second_kind
UNITS := --lib --bin xtask --test architecture
TESTS := --test integration $(if $(KUBERNETES),,$(UNITS))

.PHONY: help demo test test-built package-test package-built semver e2e bench simulate mutants nightly lint audit fmt fork generate merge-keys run image nix-check

help: ## show this list
	@grep -E '^[a-z0-9-]+:.* ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.* ## (.*)/  make \1\t\2/' | expand -t 18

demo: ## watch a Foo live, on a control plane that is built already, or else on an API server in memory (DEMO_CLUSTER=own: build one, DEMO_CLUSTER=memory, DEMO_CLUSTER=current: on yours)
	tests/demo.sh

test: test-built ## run all checks and tests, except those that tests/README.md lists as left out (KUBERNETES=1.33: only the tests, on an API server of that version)
	$(MAKE) --jobs 3 test-real $(if $(KUBERNETES),,test-units test-simulated)

# Everything except the tests: the checks of the code, and the programs that the tests run.
test-built:
	tests/require.sh
ifndef KUBERNETES
	cargo fmt --check
	cargo fmt --check --manifest-path benches/kube-rs/Cargo.toml
	$(MAKE) lint
endif
	crates/testkit/src/cluster/build.sh
	crates/testkit/src/collector/build.sh
	tests/tools/build.sh manifests
	tests/tools/build.sh kstatus
	tests/tools/build.sh go-clients
	$(BUILD) --example kube_controller --example several_kinds --example optional_kind --example two_versions --bin xtask # the programs that tests run
	cargo test --locked --workspace $(TESTS) --no-run

# Tests with real processes, which mostly wait, so more of them run than there are cores; the simulation uses the remaining CPU
# time. Most tests have deadlines, and so have those of `make e2e`: they do not run at the same time (flock). The API servers have
# enough memory to collect garbage less often (GOGC).
.PHONY: test-real test-units test-simulated
test-real:
	GOGC=800 RUST_TEST_THREADS=$$(($$(nproc) + 1)) flock $(CACHE)/deadlines.lock cargo test --locked --workspace --test integration
test-units:
	nice -n 5 cargo test --locked --workspace $(UNITS)
	nice -n 5 cargo test --locked --doc
test-simulated:
	chrt --idle 0 cargo test --locked --workspace --profile bench --test model
	chrt --idle 0 $(MAKE) simulate SEEDS=1000
	chrt --idle 0 $(MAKE) simulate EXHAUSTIVE=1 ONLY=create

package-test: package-built ## package the runtime as a crate, build dependants from it and run one, compare its public interface with the list (WRITE=1: update the list)
	tests/package/takeover.sh

package-built:
	tests/package/test.sh

semver: ## report changes of the runtime's interface that its version does not allow, since the last tag (BASE=REVISION: since that)
	tests/package/semver.sh

e2e: ## test the image that Nix builds, installed by deploy/, with real pods (IMAGE=archive: test that image; requires root)
	tests/node/e2e.sh $(IMAGE)

lint: $(DENY)/bin/cargo-deny ## run clippy, rustdoc, and cargo-deny: licences, sources and versions of the dependencies
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --package operator-runtime --lib --no-default-features --features k8s-openapi/v1_36 --locked -- -D warnings
	cargo clippy --manifest-path benches/kube-rs/Cargo.toml --target-dir $(abspath $(TARGET)) --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked --package operator-runtime --features k8s-openapi/v1_36
	cargo fetch --locked # for cargo-deny, which also checks crates of other platforms
	$(DENY)/bin/cargo-deny --locked --offline check bans licenses sources

audit: $(DENY)/bin/cargo-deny ## check the dependencies for known vulnerabilities; requires the internet
	$(DENY)/bin/cargo-deny --locked check advisories
	$(DENY)/bin/cargo-deny --locked --manifest-path benches/kube-rs/Cargo.toml check --config deny.toml advisories

fmt: ## format the code
	cargo fmt
	cargo fmt --manifest-path benches/kube-rs/Cargo.toml

fork: ## rename this into your own operator: NAME=tea-controller KIND=Teapot GROUP=example.org (PLURAL=teapots SHORT=tp)
	@$(if $(findstring command,$(origin NAME)),,unset NAME;) exec tests/tools/fork.sh # some systems set NAME to the host name

# A command that fails leaves the file as it is.
printed = printed=$$($(TARGET)/debug/foo-controller $(1)) && printf '%s\n' "$$printed" > $(2)

generate: ## write the generated files: CRD, permissions, dashboard, settings, references, completions, manual page, Helm chart
	$(BUILD) --bin foo-controller --bin xtask
	$(call printed,crd,deploy/crd.yaml)
	$(call printed,rbac,deploy/base/clusterrole.yaml)
	$(call printed,fencing-policy,deploy/components/fencing/policy.yaml)
	$(TARGET)/debug/xtask generate

merge-keys: ## write the table of merge keys, from the API of the control plane for tests
	crates/testkit/src/cluster/build.sh
	$(BUILD) --bin xtask
	$(TARGET)/debug/xtask merge-keys

run: ## run the controller against the cluster of the current kubectl context
	cargo run --locked -- run --leader-election=false

image: ## build the image with Nix for tests, in the cache folder
	tests/nix/image.sh

nix-check: ## build and check everything in flake.nix
	tests/nix/check.sh

# `--quick` only shows that it works: a release build of the controller takes minutes.
bench: ## compare with controller-runtime and kube-rs: 40 minutes (ARGS=--quick: 3 minutes, ARGS=--secrets: memory with many Secrets, ARGS=--isolation: of several kinds, ARGS=--failover: after a killed leader)
	tests/require.sh
	crates/testkit/src/cluster/build.sh
	crates/testkit/src/collector/build.sh
	$(BUILD) --example several_kinds --profile bench --bin foo-controller --bin xtask
	$(if $(filter --quick --secrets --isolation --failover,$(ARGS)),,cargo build --locked --release)
	cd benches/peer && GOWORK=off go build -trimpath -buildvcs=false -ldflags "-s -w" -o $(abspath $(TARGET))/release/bench-peer .
	$(if $(filter --quick --secrets --isolation --failover,$(ARGS)),,cargo build --locked --manifest-path benches/kube-rs/Cargo.toml --target-dir $(abspath $(TARGET)) --release)
	benches/shipped.sh $(CACHE)/image.tar $(TARGET)/release/shipped
	$(TARGET)/release/xtask bench $(ARGS)

simulate: ## run the operator in simulation: SEEDS=2000 FROM=1: check many seeds; SEED=17 or CASE=name: print one; EXHAUSTIVE=1: a fault at each early request (ONLY=script)
	@$(BUILD) --quiet --profile bench --bin simulate
	@$(TARGET)/release/simulate $(if $(EXHAUSTIVE),--exhaustive $(if $(ONLY),--only "$(ONLY)"),$(if $(CASE),--report "$(CASE)",$(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),2000) --from $(or $(FROM),1))))

mutants: ## remove each protection, which must make the simulation fail: an hour (NAME='part of a name|of another': only those)
	@$(BUILD) --quiet --profile bench --bin simulate
	@$(TARGET)/release/simulate --mutants "$(NAME)"

nightly: test-built ## run the long tests: all faults at all scripts, new seeds each time, mutants, an hour of churn: three to four hours
	$(MAKE) simulate EXHAUSTIVE=1
	$(MAKE) simulate SEEDS=20000 FROM=$$(date +%s)
	$(MAKE) mutants
	$(MAKE) bench ARGS=--failover
	cargo test --locked --test integration -- --ignored --nocapture an_hour
	cargo test --locked --workspace --features aws-lc-rs --lib --test integration -- tls:: certificates:: kubeconfig::

$(DENY)/bin/cargo-deny:
	tests/tools/install.sh cargo-deny 0.20.2
