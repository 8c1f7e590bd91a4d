#!/usr/bin/env bash
# Builds what a node consists of and is looked at with, into $KUBE/bin: all of
# Kubernetes as one program with a link for each of its names, pause and Jaeger; and
# Helm, where .ci/run keeps it. What is there and of the same sources stays. It takes
# about ten minutes on two idle cores, and 4 GB of build cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/hyper"

: "${KUBE:?}"
export CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOWORK=off
bin=$KUBE/bin
pinned() { sed -n "s/^$1 *= *//p" ../../../../Makefile; } # versions stand in the Makefile alone
helm=$(pinned HELM) jaeger=$(pinned JAEGER)
[[ -x $KUBE/../helm-$helm/helm ]] || GOBIN=$(realpath "$KUBE/..")/helm-$helm go install "helm.sh/helm/v3/cmd/helm@$helm"
sources=$({ cat go.mod go.sum main.go pause/main.go ../build.sh; go version; echo "$jaeger"; } | sha256sum)
if [[ -f $bin/sources && $(<"$bin/sources") == "$sources" ]]; then exit 0; fi

version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
# Programs that don't know their version refuse each other.
flags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
done
echo "builds Kubernetes $version: this takes minutes, once"
rm -rf "$bin"
mkdir -p "$bin"
go build -trimpath -ldflags "$flags" -o "$bin/hyper" .
go build -trimpath -ldflags "-s -w" -o "$bin/pause" ./pause
for name in etcd coredns kubectl kubelet kube-apiserver kube-controller-manager kube-proxy kube-scheduler; do
  ln -s hyper "$bin/$name"
done

# Jaeger's module can't be installed from outside, but be built with.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
go mod init jaeger 2>/dev/null
go get "github.com/jaegertracing/jaeger/cmd/all-in-one@$jaeger" 2>/dev/null
go build -trimpath -ldflags "-s -w" -o "$bin/jaeger" github.com/jaegertracing/jaeger/cmd/all-in-one
echo "$sources" >"$bin/sources"
