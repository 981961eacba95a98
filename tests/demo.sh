#!/usr/bin/env bash
# Shows the controller at work. It needs the programs of require.sh.
#   DEMO_CLUSTER=own      on an own control plane, which Go builds
#   DEMO_CLUSTER=memory   on a simulated API server in memory
#   DEMO_CLUSTER=current  on the cluster of the current kubectl context, in a separate namespace
# Without it, the own control plane is used if its programs and Go are there, else the one in memory. kubectl is built if PATH has
# none.
# DEMO_ONCE=1 ends after the last step instead of waiting for Ctrl-C. DEMO_PROFILE=release builds with that profile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests/require.sh

cluster=${DEMO_CLUSTER:-}
case $cluster in
  '')
    cluster=memory
    if command -v go >/dev/null && crates/testkit/src/cluster/build.sh --built; then cluster=own; fi ;;
  own | memory) ;;
  current) command -v kubectl >/dev/null || { echo "DEMO_CLUSTER=current takes kubectl" >&2; exit 1; } ;;
  *) echo "DEMO_CLUSTER=$cluster: want own, memory, current or nothing" >&2; exit 1 ;;
esac
if [ "$cluster" = memory ]; then
  command -v kubectl >/dev/null || command -v go >/dev/null || { echo "install kubectl, or Go, which builds it" >&2; exit 1; }
  echo "This runs on a simulated API server in memory: no scheduler, no kubelet, no container runs."
  echo "'DEMO_CLUSTER=own make demo' builds a real control plane, which takes minutes once, and runs on it."
  if ! command -v kubectl >/dev/null; then
    bin=$(crates/testkit/src/cluster/build.sh kubectl)
    PATH=$bin:$PATH
  fi
fi

namespace=foo-demo
profile=${DEMO_PROFILE:-dev}
target=${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}
work=$(mktemp -d "${TMPDIR:-/tmp}/foo-controller-demo-XXXXXX")
export KUBECACHEDIR=$work/kubectl
log=$work/controller.log
telemetry=$work/telemetry
controller='' collector='' plane='' made_namespace='' made_crd='' shown=0
bound=() # keeps the controller from outliving this script, even if it is killed
if command -v setpriv >/dev/null; then bound=(setpriv --pdeathsig KILL --); fi

bold='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; else export NO_COLOR=1; fi

say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
run() { printf '%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }

# Prints the new log lines of the controller.
controller_log() {
  printf '%s-- the controller:%s\n' "$bold" "$plain"
  tail -n +$((shown + 1)) "$log"
  shown=$(wc -l <"$log")
}

# Ends the started processes and removes the created objects, and nothing else.
clean_up() {
  local status=$?
  trap '' INT TERM HUP
  if [ "$status" -ne 0 ] && [ "$status" -lt 128 ] && [ -n "$controller" ]; then
    say "that went wrong; the controller's last lines:"
    tail -n 20 "$log"
  fi
  if [ -n "$controller" ]; then kill "$controller" 2>/dev/null || true; wait "$controller" || true; fi
  if [ -n "$collector" ]; then kill "$collector" 2>/dev/null || true; wait "$collector" || true; fi
  if [ -n "$plane" ]; then
    exec {to_plane}>&- # ends its stdin, and thereby the process with all its children
    wait "$plane" || true
  else
    if [ -n "$made_namespace" ]; then kubectl delete namespace "$namespace" --timeout=60s || true; fi
    # Foos of other users would be deleted with the CRD.
    if [ -n "$made_crd" ] && [ -z "$(kubectl get foos --all-namespaces --output=name)" ]; then
      kubectl delete -f deploy/crd.yaml || true
    fi
  fi
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "Building the controller"
# The example as in the Makefile.
cargo build --locked --workspace --example second_kind --profile "$profile" --bin foo-controller --bin xtask

if [ "$cluster" = current ]; then
  say "Using the cluster of the current context, $(kubectl config current-context)"
else
  if [ "$cluster" = memory ]; then
    say "Starting a simulated API server in memory"
    coproc "$target/xtask" cluster --memory
  else
    say "Starting a control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and a kwok node"
    coproc "$target/xtask" cluster --controllers
  fi
  plane=$COPROC_PID to_plane=${COPROC[1]}
  IFS= read -r ready <&"${COPROC[0]}" || { echo "no control plane" >&2; exit 1; }
  field() { sed -E "s/.*\"$1\":\"([^\"]*)\".*/\1/" <<<"$ready"; }
  KUBECONFIG=$(field kubeconfig) PATH=$(field bin):$PATH
  export KUBECONFIG PATH
fi
# A copy: a change of the user's context does not affect it, and only the copy has the demo's namespace.
kubectl config view --raw --flatten --minify >"$work/kubeconfig"
export KUBECONFIG=$work/kubeconfig
[ "$cluster" = memory ] || run kubectl get nodes
run kubectl create namespace "$namespace"
made_namespace=yes
kubectl config set-context --current --namespace="$namespace" >/dev/null

if ! kubectl get crd foos.samplecontroller.k8s.io >/dev/null 2>&1; then
  say "Installing the CRD"
  run kubectl create -f deploy/crd.yaml
  made_crd=yes
fi
run kubectl wait --for=condition=Established --timeout=30s crd/foos.samplecontroller.k8s.io

mkdir "$telemetry"
if [ "$cluster" = memory ]; then
  say "Starting a receiver of OTLP, in place of an OpenTelemetry Collector"
  collector_command=("$target/xtask" receive "$telemetry")
else
  say "Starting an OpenTelemetry Collector"
  program=$(crates/testkit/src/collector/build.sh)
  collector_command=("$program" --config crates/testkit/src/collector/collector.yaml)
fi
COLLECTOR_FOLDER=$telemetry "${bound[@]}" "${collector_command[@]}" >"$telemetry/log" 2>&1 &
collector=$!
port=''
until [ -n "$port" ]; do
  kill -0 "$collector" 2>/dev/null || { cat "$telemetry/log" >&2; exit 1; }
  sleep 0.1
  port=$(sed -nE '/Starting GRPC server/s/.*"endpoint": "127\.0\.0\.1:([0-9]+)".*/\1/p' "$telemetry/log")
done
echo "it receives OTLP at http://127.0.0.1:$port"

say "Starting the controller"
controller_command=("$target/foo-controller" run --leader-election=false --namespace="$namespace"
  --http-addr=127.0.0.1:0 --log-format=text --otlp-endpoint="http://127.0.0.1:$port" --kubeconfig="$KUBECONFIG")
printf '$ %s\n' "${controller_command[*]}"
# Exports traces in small batches.
OTEL_BSP_SCHEDULE_DELAY=500 "${bound[@]}" "${controller_command[@]}" >"$log" 2>&1 &
controller=$!

say "A Foo is created, and gets its Deployment"
run cat config/samples/foo.yaml
run kubectl apply -f config/samples/foo.yaml
run kubectl wait --for=condition=Ready --timeout=120s foo/foo-sample
run kubectl get foo,deploy
controller_log

say "The first reconcile of that Foo, in its traces and logs"
"$target/xtask" trace "$telemetry" foo-sample

say "The Foo is scaled, and its Deployment follows"
run kubectl scale foo/foo-sample --replicas=3
run kubectl wait --for='jsonpath={.status.availableReplicas}=3' --timeout=120s foo/foo-sample
run kubectl get foo,deploy
controller_log

say "Someone scales the Deployment instead of the Foo, and it is scaled back"
run kubectl scale deployment/foo-sample --replicas=7
run kubectl wait --for='jsonpath={.spec.replicas}=3' --timeout=60s deployment/foo-sample
run kubectl get foo,deploy
controller_log

say "Someone deletes the Deployment, and it is created again"
run kubectl get deployment/foo-sample -o custom-columns=NAME:.metadata.name,UID:.metadata.uid,REPLICAS:.spec.replicas
run kubectl delete deployment/foo-sample
run kubectl wait --for=create --timeout=60s deployment/foo-sample
run kubectl wait --for='jsonpath={.status.availableReplicas}=3' --timeout=120s deployment/foo-sample
run kubectl get deployment/foo-sample -o custom-columns=NAME:.metadata.name,UID:.metadata.uid,REPLICAS:.spec.replicas
controller_log

say "The events of the Foo"
run kubectl get events --field-selector=involvedObject.kind=Foo

say "All reconciles of the Foo, as a page for a browser"
"$target/xtask" trace "$telemetry" foo-sample "$work/traces.html"
echo "file://$work/traces.html"

if [ -z "${DEMO_ONCE:-}" ]; then
  say "Play on, in another terminal"
  echo "export KUBECONFIG=$KUBECONFIG KUBECACHEDIR=$KUBECACHEDIR PATH=$(dirname "$(command -v kubectl)"):\$PATH"
  echo "kubectl get foo --watch"
  echo "tail -f $log"
  say "Ctrl-C ends it, and leaves nothing behind"
  trap 'exit 0' INT
  while read -r _; do :; done
fi
