#!/usr/bin/env bash
# Runs two replicas of the dependant that test.sh builds without the default features, on a real API server: the leader is frozen,
# killed and stopped. The other one takes over, and the audit log contains no write of a former leader. The Lease is short, so a
# busy machine would lose it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} CARGO_INCREMENTAL=0
fail() { echo "package: $*" >&2; exit 1; }

crates/testkit/src/cluster/build.sh >/dev/null
tested=$(FOO_CONTROLLER_TEST_PROGRAM=$CARGO_TARGET_DIR/of-dependants/debug/elected \
  cargo test --quiet --locked --workspace --test integration i1_to_i8_hold_for_kubes_controller 2>&1) || fail "$tested"
grep -q '1 passed' <<<"$tested" || fail "no test ran: $tested"
