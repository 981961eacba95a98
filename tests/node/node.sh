#!/usr/bin/env bash
# node.sh COMMAND…: runs COMMAND with a real single-node Kubernetes cluster (etcd, kube-apiserver, kube-controller-manager,
# kube-scheduler, kube-proxy, kubelet, containerd, runc) in separate network, mount, process and cgroup namespaces. When COMMAND
# ends, the kernel ends all other processes in them. No traffic reaches the network of the host, and no file stays on it.
#
# COMMAND finds kubectl and ctr on PATH, the cluster in KUBECONFIG, and logs, audit.log and kubelet.pid in $NODE. The images of
# NODE/images/*.tar (docker or OCI archives) are imported at the start. Needs root, cgroup v1 or v2, the Debian packages of
# .ci/run, and the programs of the control plane and of the node on PATH.
#
# With FAMILY=6, the node, the pods and the Services have only IPv6 addresses.
#
# Limits: this node enforces no NetworkPolicy, has no DNS, and pulls no image.
set -euo pipefail

name="node-1"
port=6443 # the API server's default port, which components/networkpolicy allows
if [ "${FAMILY:=4}" = 6 ]; then
  address=fd10:231::1 prefix=64 pods=fd10:244::/64 services=fd10:96::/112 dns=fd10:96::a any=:: host=[$address]
  nodad=nodad # a bridge without ports has no carrier, and never ends the duplicate address detection
else
  address=10.231.0.1 prefix=24 pods=10.244.0.0/24 services=10.96.0.0/16 dns=10.96.0.10 any=0.0.0.0 host=$address nodad=
fi
server=https://$host:$port

die() { echo "node: $*" >&2; exit 1; }

# ------------------------------------------------------------------------------------------------------------ on the host

# Whether there is one cgroup hierarchy (v2, the default of Debian since 11) instead of one for each controller (v1).
unified() { [ -f /sys/fs/cgroup/cgroup.controllers ]; }

# Prints the cgroup of this script in each hierarchy.
cgroups() {
  local controllers path
  if unified; then
    # At the top, because a cgroup that contains processes, such as that of a session, cannot delegate controllers.
    echo /sys/fs/cgroup/foo-controller-node-$$
    return
  fi
  while IFS=: read -r _ controllers path; do
    [ -n "$controllers" ] || continue # cgroup v2 without controllers, beside v1
    path=/sys/fs/cgroup/${controllers#name=}${path%/}
    [ ! -d "$path" ] || echo "$path/foo-controller-node-$$"
  done </proc/self/cgroup
}

# Delegates all controllers of a cgroup (v2) to its children.
hand_down() { # cgroup
  local controller missing=
  for controller in $(cat "$1/cgroup.controllers"); do
    echo "+$controller" 2>/dev/null >"$1/cgroup.subtree_control" || missing+=" $controller"
  done
  [[ " $missing " != *" cpu "* && " $missing " != *" memory "* ]]
}

host() {
  [ "$(id -u)" = 0 ] || die "takes root, for its namespaces"
  unified || [ -d /sys/fs/cgroup/memory ] || die "takes cgroups, v1 or v2, mounted in /sys/fs/cgroup"
  local program
  for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet kube-proxy \
    containerd ctr runc nft iptables conntrack ip unshare setpriv openssl curl; do
    command -v "$program" >/dev/null || die "takes $program on PATH"
  done

  mapfile -t ours < <(cgroups)
  box=''
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  if unified && ! hand_down /sys/fs/cgroup; then
    # In a container, the visible top level contains processes. They are moved to a child cgroup, as docker in docker does, and
    # keep the controllers there.
    mkdir -p /sys/fs/cgroup/init
    local process tries
    for tries in {1..100}; do # a moved process may have started children
      for process in $(cat /sys/fs/cgroup/cgroup.procs); do
        echo "$process" 2>/dev/null >/sys/fs/cgroup/init/cgroup.procs || true # it may have ended
      done
      ! hand_down /sys/fs/cgroup || break
    done
    [ "$tries" -lt 100 ] || die "cannot hand down the controllers of /sys/fs/cgroup"
  fi
  mkdir "${ours[@]}"
  local group file left
  for group in "${ours[@]}"; do
    for left in "${group%-*}"-*; do # left by a killed script
      [ -d "/proc/${left##*-}" ] || find "$left" -depth -type d -exec rmdir {} +
    done
    case $group in /sys/fs/cgroup/cpuset/*)
      for file in cpuset.cpus cpuset.mems; do cat "${group%/*}/$file" >"$group/$file"; done ;;
    esac
  done
  # If this script ends in any way, the kernel kills the node's first process, and thereby all others.
  (
    for group in "${ours[@]}"; do echo "$BASHPID" >"$group/cgroup.procs"; done
    exec setpriv --pdeathsig KILL -- unshare --cgroup -- "$0" --leaf "${ours[0]}" "$@"
  ) &
  box=$!
  local status=0
  wait $box || status=$?
  box=
  exit $status
}

# From here on, the cgroups of this script are the visible top level.
leaf() { # our first cgroup, command
  local group=$1
  shift
  if unified; then # a cgroup with children must not contain processes
    mkdir "$group/node"
    echo $$ >"$group/node/cgroup.procs"
  fi
  exec unshare --net --mount --pid --uts --ipc --fork --kill-child --propagation private -- "$0" --inside "$@"
}

clean_up() {
  local status=$? left
  trap '' INT TERM HUP
  if [ -n "$box" ]; then
    kill -KILL "$box" # unshare, which with --kill-child kills the node's first process as well
    wait "$box" || true
  fi
  for _ in $(seq 100); do
    left=0
    for group in "${ours[@]}"; do
      [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
    done
    [ $left = 1 ] || break
    sleep 0.1
  done
  [ $left = 0 ] || echo "node: cgroups are left: ${ours[*]}" >&2
  exit $status
}

# ------------------------------------------------------------------------------------------------- in the namespaces, as PID 1

# Prints a kubeconfig for a user of tokens.csv.
kubeconfig() { # user
  cat <<E
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "$server", certificate-authority: $NODE/pki/apiserver.crt}}]
users: [{name: $1, user: {token: $1}}]
contexts: [{name: node, context: {cluster: node, user: $1}}]
current-context: node
E
}

files() {
  mkdir -p cni pki log manifests sysctl
  # No other client can reach the API server, so the tokens need not be secret.
  cat >tokens.csv <<E
admin,admin,admin,system:masters
scheduler,system:kube-scheduler,scheduler
controllers,system:kube-controller-manager,controllers
proxy,system:kube-proxy,proxy,system:node-proxiers
kubelet,system:node:$name,kubelet,system:nodes
E
  local user
  for user in admin scheduler controllers proxy kubelet; do kubeconfig $user >$user.kubeconfig; done
  openssl ecparam -name prime256v1 -genkey -noout -out service-accounts.key
  cat >containerd.toml <<E
version = 2
root = "$NODE/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "stand-in:e2e"
  disable_apparmor = true
  # Lowering oom_score_adj needs a capability that a container of CI may not have.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$NODE/cni"
E
  cat >cni/10-bridge.conflist <<E
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
  "hairpinMode": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "$any/0"}]}}]}
E
  # No other client can reach the kubelet either.
  cat >kubelet.yaml <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: "$address"
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failCgroupV1: false
cgroupDriver: cgroupfs
failSwapOn: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: $NODE/resolv.conf
clusterDomain: cluster.local
clusterDNS: ["$dns"]
volumePluginDir: $NODE/volume-plugins
seccompDefault: true
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi}
E
  echo "nameserver 127.0.0.1" >resolv.conf
  cat >kube-proxy.yaml <<E
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: "$address"
hostnameOverride: $name
mode: nftables
oomScoreAdj: 0
clusterCIDR: "$pods"
clientConnection: {kubeconfig: $NODE/proxy.kubeconfig}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 100ms}
E
}

mounts() {
  local ours version=1 controller setting
  if unified; then version=2; fi
  ours=$(cat /proc/self/cgroup) # before the new /proc, where this process has another ID
  mount --make-rshared /
  mount -t proc proc /proc
  mount -t sysfs sysfs /sys # of the new network namespace
  if [ $version = 2 ]; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    hand_down /sys/fs/cgroup
  else
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
      grep -qE "^[0-9]+:([a-z_,]*,)?$controller(,[a-z_,]*)?:" <<<"$ours" || continue
      mkdir "/sys/fs/cgroup/$controller"
      mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
    done
    if grep -q ':name=systemd:' <<<"$ours"; then # the kubelet needs every hierarchy that it is in
      mkdir /sys/fs/cgroup/systemd
      mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
    fi
  fi
  # Folders with fixed paths of the kubelet, containerd and the network plugins.
  local folder
  for folder in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs $folder; done
  # These settings apply to the whole machine, and the kubelet would change them. It sees the expected values instead.
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    local file=${setting%%=*}
    echo "${setting#*=}" >"sysctl/${file//\//.}"
    mount --bind "sysctl/${file//\//.}" "/proc/sys/$file"
  done
}

network() {
  hostname $name
  ip link set lo up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  if [ "$FAMILY" = 6 ]; then echo 1 >/proc/sys/net/ipv6/conf/all/forwarding; fi
  # The node's own address, on a bridge without ports. All traffic except that of pods ends there.
  ip link add uplink type bridge
  # shellcheck disable=SC2086 # may be empty
  ip addr add $address/$prefix dev uplink $nodad
  ip link set uplink up
  ip "-$FAMILY" route add default dev uplink
}

start() { # program, arguments
  "$@" >"log/$1.log" 2>&1 &
}

# Restarts the kubelet when it ends, like systemd.
kubelet_for_ever() {
  while :; do
    kubelet --config kubelet.yaml --kubeconfig kubelet.kubeconfig --root-dir "$NODE/kubelet" --cert-dir "$NODE/kubelet-pki" \
      --hostname-override $name --node-ip $address >>log/kubelet.log 2>&1 &
    echo $! >kubelet.pid.new
    mv kubelet.pid.new kubelet.pid # readers see a complete file
    wait $! || true
  done
}

eventually() { # what, command
  local what=$1
  shift
  for _ in $(seq 600); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  tail -n 5 log/* >&2
  die "$what: not within a minute"
}

# The text of a failed check contains "ok", too.
serves() { [ "$(curl -s --cacert pki/apiserver.crt -H "Authorization: Bearer admin" $server/readyz)" = ok ]; }

inside() {
  cd "$NODE"
  files
  mounts
  network
  export KUBECONFIG=$NODE/admin.kubeconfig
  local images
  images=(images/*.tar)
  start containerd --config containerd.toml
  start etcd --data-dir etcd --unsafe-no-fsync --log-level error
  start kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address $any --advertise-address $address \
    --secure-port $port --cert-dir pki --token-auth-file tokens.csv --authorization-mode Node,RBAC \
    --enable-admission-plugins NodeRestriction,PodNodeSelector --service-cluster-ip-range $services --allow-privileged \
    --service-account-issuer https://kubernetes.default.svc --service-account-signing-key-file service-accounts.key \
    --service-account-key-file service-accounts.key --kubelet-preferred-address-types InternalIP \
    --audit-policy-file "$AUDIT_POLICY" --audit-log-path audit.log --audit-log-maxsize 100000
  eventually "containerd answers" ctr version
  local image
  for image in "${images[@]}"; do ctr -n k8s.io images import "$image" >>log/import.log 2>&1 || die "$image: $(tail -n 1 log/import.log)"; done
  eventually "the API server is ready" serves
  # The node should limit the rate of a hundred Foos, and not these two.
  local client=(--leader-elect=false --kube-api-qps 1000 --kube-api-burst 1000)
  start kube-controller-manager --kubeconfig controllers.kubeconfig "${client[@]}" \
    --use-service-account-credentials --service-account-private-key-file service-accounts.key \
    --root-ca-file pki/apiserver.crt --flex-volume-plugin-dir "$NODE/volume-plugins"
  start kube-scheduler --kubeconfig scheduler.kubeconfig "${client[@]}"
  kubectl create clusterrolebinding proxy --clusterrole system:node-proxier --user system:kube-proxy >/dev/null
  start kube-proxy --config kube-proxy.yaml
  kubelet_for_ever &
  eventually "the node is there" kubectl get node $name
  kubectl wait --for=condition=Ready node/$name --timeout=60s >/dev/null
  eventually "pods have an account" kubectl get -n default serviceaccount/default configmap/kube-root-ca.crt
  cd "$OLDPWD"
  "$@"
}

case ${1:-} in
  --leaf) shift && leaf "$@" ;;
  --inside) shift && inside "$@" ;;
  *) host "$@" ;;
esac
