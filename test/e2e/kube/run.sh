#!/usr/bin/env bash
# Runs the tests of this folder in a real Kubernetes of one node, which is built,
# started in namespaces of its own and gone at the end.
#
#	SUITE=quick  the first scenario alone
#	RUN=REGEXP   those tests
#
# Needs root, Go, and what is in packages below: without one of them, or where a node
# can't be built or started, it says so in one line and exits 77. What takes long to
# build is kept in the cache of .ci/run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)

case ${SUITE:-all} in
quick) tests=^TestChart$ ;;
all) tests=. ;;
*) echo "run.sh: SUITE is quick or all, not $SUITE" >&2; exit 2 ;;
esac

not_run() { echo "Kubernetes is not tried: $*"; exit 77; }

# packages are Debian's, each with a file or program of it.
packages=(containerd=containerd runc=runc containernetworking-plugins=/usr/lib/cni/bridge nftables=nft
  iproute2=ip util-linux=unshare openssl=openssl buildah=buildah busybox-static=busybox prometheus=promtool
  python3-flask=/usr/lib/python3/dist-packages/flask python3-waitress=/usr/lib/python3/dist-packages/waitress
  python3-requests=/usr/lib/python3/dist-packages/requests)
export PATH=$PATH:/usr/sbin:/sbin
[[ $(id -u) == 0 ]] || not_run "it needs root"
missing=()
for p in "${packages[@]}"; do
  [[ -e ${p#*=} ]] || command -v "${p#*=}" >/dev/null || missing+=("${p%%=*}")
done
[[ ${#missing[@]} -eq 0 ]] || not_run "apt-get install ${missing[*]}"
unshare --mount --pid --net --uts --ipc --fork true 2>/dev/null || not_run "this machine lets nobody have namespaces"
compgen -G "$root/test/e2e/node/node_modules/node-linux-*/bin/node" >/dev/null ||
  not_run "npm ci --ignore-scripts --prefix test/e2e/node"

export KUBE=${WOPPROXY_CI_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/wopproxy-ci}/kube
NODE_DIR=$(mktemp -d "${TMPDIR:-/tmp}/wopproxy-kube-XXXXXX")
export NODE_DIR
child= ends_by=
finish() {
  if [[ -n $child ]]; then
    kill -s "$ends_by" "$child" 2>/dev/null || true
    wait "$child" || true
  fi
  rm -rf "$NODE_DIR"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
# attended runs a command that a signal ends when this shell does, whatever ends it.
attended() { # SIGNAL COMMAND...
  local status=0
  ends_by=$1
  setpriv --pdeathsig "$1" "${@:2}" </dev/null &
  child=$!
  wait "$child" || status=$?
  child=
  return "$status"
}

export CGO_ENABLED=0 GOFLAGS=-buildvcs=false
mkdir -p "$KUBE" "$NODE_DIR/bin"
cd "$root"
go test -c -o "$NODE_DIR/bin/suite" ./test/e2e/kube
go build -o "$NODE_DIR/bin/wopproxy" ./cmd/wopproxy
exec 9>"$KUBE/lock"
flock 9 # two of us would build in one place
attended TERM "$here/build.sh" || not_run "its programs can't be built, for what is said above"
# What a build mounts is gone with its namespace. unshare takes no other signal.
TMPDIR=$NODE_DIR attended KILL unshare --mount --pid --fork --mount-proc --kill-child "$here/images.sh"
exec 9>&-
export PATH=$NODE_DIR/bin:$KUBE/../helm-$(sed -n 's/^HELM *= *//p' Makefile):$PATH WOPPROXY_KUBE=1 CHART=$root/charts/wopproxy
export HELM_CACHE_HOME=$NODE_DIR/helm HELM_CONFIG_HOME=$NODE_DIR/helm HELM_DATA_HOME=$NODE_DIR/helm
attended TERM "$here/node.sh" suite -test.v -test.timeout 50m -test.run "${RUN:-$tests}"
