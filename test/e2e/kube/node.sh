#!/usr/bin/env bash
# A Kubernetes of one node for a test: etcd, control plane, kubelet, containerd,
# Services and DNS, in namespaces of their own.
#
#	node.sh COMMAND [ARGUMENT...]
#
# runs COMMAND on the node once it is Ready, with kubectl and KUBECONFIG, and ends
# with its exit status, or with 77 if this machine lets no node be. However it ends,
# all that it has started ends with it, and of the machine nothing has changed. Needs
# root, and reaches nothing outside.
#
#	KUBE      folder whose bin/ build.sh has filled
#	NODE_DIR  folder whose images/ images.sh has filled; logs and state go there,
#	          and who made it removes it
set -euo pipefail

: "${KUBE:?}" "${NODE_DIR:?}"
address=10.99.0.1 pods=10.99.0.0/24 services=10.99.1.0/24 # all of them in a network of our own
patience=600                                              # seconds for what takes ten on an idle machine

# --- outside: what the namespaces don't hide

# cgroups COMMAND runs it for each hierarchy of control groups.
cgroups() {
  local at
  if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
    "$1" /sys/fs/cgroup
    return
  fi
  for at in /sys/fs/cgroup/*; do
    [[ -L $at || ! -f $at/cgroup.procs ]] || "$1" "$at"
  done
}

enter_cgroup() {
  local file
  mkdir "$1/$CGROUP"
  # A cpuset that says nothing takes no process.
  for file in cpuset.cpus cpuset.mems; do
    [[ ! -f $1/$CGROUP/$file || -f $1/cgroup.controllers ]] || cat "$1/$file" >"$1/$CGROUP/$file"
  done
}

# leave_cgroup waits for processes that have been killed and are not gone yet.
leave_cgroup() {
  local tries
  for tries in {1..100}; do
    find "$1/$CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [[ -d $1/$CGROUP ]] || return 0
    sleep 0.1
  done
  echo "node.sh: $1/$CGROUP is left behind" >&2
}

outside() {
  local status=0
  node='' entered='' # which the trap finds where a function has failed
  export CGROUP=wopproxy-$$
  finish() {
    if [[ -n $node ]]; then
      kill -KILL "$node" 2>/dev/null || true
      wait "$node" 2>/dev/null || true
    fi
    cgroups leave_cgroup
    [[ -n $entered ]] || { echo "Kubernetes is not tried: this machine lets nobody have control groups"; exit 77; }
  }
  trap finish EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
  cgroups enter_cgroup
  entered=yes
  # Where this shell is killed, unshare is, and with it the first process of the
  # node, and with that all others.
  setpriv --pdeathsig KILL unshare --mount --pid --net --uts --ipc --fork --mount-proc --kill-child \
    "$BASH" "${BASH_SOURCE[0]}" "$@" </dev/null &
  node=$!
  wait "$node" || status=$?
  node=
  exit "$status"
}

# --- inside

log=$NODE_DIR/log began=$SECONDS
say() { printf 'node: %4ds  %s\n' $((SECONDS - began)) "$*" >&2; }

give_up() {
  say "$*"
  tail -n 15 "$log"/*.log >&2
  exit 1
}

# until_done WHAT COMMAND...: repeats it until it succeeds.
until_done() {
  local what=$1 end=$((SECONDS + patience)) program
  shift
  until "$@" >"$log/await.log" 2>&1; do
    ((SECONDS < end)) || give_up "$what: not within $patience s"
    for program in "${started[@]}"; do
      kill -0 "$program" 2>/dev/null || give_up "$what: a program has ended"
    done
    sleep 0.2
  done
}

started=()
start() { # PROGRAM ARGUMENT...
  "$@" >"$log/${1##*/}.log" 2>&1 </dev/null &
  started+=($!)
}

# own_machine hides what the node would change.
own_machine() {
  local dir setting
  mount --make-rprivate /
  resolver=$(readlink -f /etc/resolv.conf)
  mount -t tmpfs tmpfs /run
  for dir in /etc/kubernetes /etc/cni /opt/cni /var/lib/cni /var/lib/kubelet /var/log/pods /var/log/containers; do
    mkdir -p "$dir"
    mount -t tmpfs tmpfs "$dir"
  done
  mkdir -p /run/netns /run/lock /run/node
  # Settings of the whole machine that the kubelet insists on: it may have copies.
  for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    dir=/run/node/${setting//[\/=]/.}
    echo "${setting#*=}" >"$dir"
    mount --bind "$dir" "/proc/sys/${setting%=*}"
  done
  # An overlay can't lie on an overlay.
  mkdir -p "$NODE_DIR/containerd"
  [[ $(stat -f -c %T "$NODE_DIR") != overlayfs ]] || mount -t tmpfs tmpfs "$NODE_DIR/containerd"
  mount --make-rshared / # what is mounted for a container reaches it
}

# own_network is a bridge that pods hang on; its address is the node's.
own_network() {
  hostname node
  ip link set lo up
  ip link add pods type bridge
  ip address add "$address/24" dev pods
  ip link set pods up
  ip route add "$services" dev pods # from the node, Services would have no route
  echo 1 >/proc/sys/net/ipv4/ip_forward
  mkdir -p /etc/cni/net.d
  cat >/etc/cni/net.d/pods.conflist <<END
{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
    "ipam": {
      "type": "host-local", "dataDir": "/run/node/addresses", "routes": [{"dst": "0.0.0.0/0"}],
      "ranges": [[{"subnet": "$pods", "rangeStart": "${address%.*}.10"}]]
    }
  }]
}
END
}

run_containerd() {
  local image socket=/run/node/containerd.sock
  # restrict_oom_score_adj: where the machine has not the right to lower it, runc
  # fails to start any pod.
  cat >/run/node/containerd.toml <<END
version = 2
root = "$NODE_DIR/containerd"
state = "/run/node/containerd"
[grpc]
  address = "$socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:test"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
END
  start containerd --config /run/node/containerd.toml
  until_done "containerd answers" ctr --address "$socket" version
  for image in "$NODE_DIR"/images/*.tar; do
    ctr --address "$socket" --namespace k8s.io images import "$image" >"$log/import.log" 2>&1 || give_up "$image is no image"
  done
}

run_control_plane() {
  local token
  cd /run/node
  token=$(openssl rand -hex 16)
  echo "$token,admin,admin,system:masters" >tokens.csv
  openssl genrsa -out accounts.key 2048 2>/dev/null
  cat >kubeconfig <<END
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://$address:6443", certificate-authority: /run/node/apiserver/apiserver.crt}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: node, context: {cluster: node, user: admin}}]
current-context: node
END
  export KUBECONFIG=/run/node/kubeconfig
  start etcd --data-dir "$NODE_DIR/etcd" --unsafe-no-fsync --log-level warn
  # With aggregator routing, webhooks are called at the addresses of their pods.
  start kube-apiserver --etcd-servers http://127.0.0.1:2379 \
    --advertise-address "$address" --secure-port 6443 --cert-dir /run/node/apiserver \
    --service-cluster-ip-range "$services" --enable-aggregator-routing \
    --token-auth-file tokens.csv --authorization-mode Node,RBAC --allow-privileged \
    --service-account-issuer https://kubernetes.default.svc \
    --service-account-key-file accounts.key --service-account-signing-key-file accounts.key \
    --kubelet-preferred-address-types InternalIP
  until_done "the control plane is ready" kubectl get --raw /readyz
  start kube-controller-manager --kubeconfig kubeconfig --leader-elect=false \
    --service-account-private-key-file accounts.key --root-ca-file apiserver/apiserver.crt
  start kube-scheduler --kubeconfig kubeconfig --leader-elect=false
  cd "$OLDPWD"
}

run_node() {
  cat >/run/node/kubelet.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/node/containerd.sock
clusterDNS: [$address]
clusterDomain: cluster.local
resolvConf: ""
# The machine is as it is: old control groups or new, swap or none, a disk that is
# full or not.
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
# Only from the node itself.
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
END
  start kubelet --config /run/node/kubelet.yaml --kubeconfig "$KUBECONFIG" --node-ip "$address" --hostname-override node
  start kube-proxy --kubeconfig "$KUBECONFIG" --proxy-mode nftables --hostname-override node \
    --cluster-cidr "$pods" --conntrack-max-per-core 0
  cat >/run/node/Corefile <<END
. {
  bind $address
  errors
  kubernetes cluster.local {
    kubeconfig $KUBECONFIG node
    ttl 1
  }
}
END
  start coredns -conf /run/node/Corefile
  cat >/run/node/resolv.conf <<END
nameserver $address
search default.svc.cluster.local svc.cluster.local cluster.local
options ndots:5
END
  mkdir -p "${resolver%/*}"
  touch "$resolver"
  mount --bind /run/node/resolv.conf "$resolver"
  until_done "the node is Ready" kubectl wait --for=condition=Ready node/node --timeout=1s
  until_done "pods have an account" kubectl get serviceaccount default
}

# inside is the first process of the node: when it ends, all others do.
inside() {
  ready=''
  trap '[[ -n $ready ]] || { echo "Kubernetes is not tried: the node does not start, for what is said above"; exit 77; }' EXIT
  export PATH=$KUBE/bin:$PATH:/usr/sbin:/sbin
  mkdir -p "$log"
  own_machine
  own_network
  run_containerd
  say "containerd is up, with the images"
  run_control_plane
  say "the control plane is up"
  run_node
  say "the node is Ready"
  ready=yes
  local status=0
  "$@" || status=$?
  exit "$status"
}

if [[ -z ${CGROUP:-} ]]; then outside "$@"; else inside "$@"; fi
