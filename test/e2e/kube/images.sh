#!/usr/bin/env bash
# Builds the images that a node loads, into $NODE_DIR/images, with neither engine
# nor registry: wopproxy's own of the Dockerfile as it stands, and those of its
# peers, which are made of what is installed here. Layers stay in $KUBE/store.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)

: "${KUBE:?}" "${NODE_DIR:?}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
driver=overlay
[[ $(stat -f -c %T "$KUBE") != overlayfs ]] || driver=vfs
images() { buildah --root "$KUBE/store" --runroot "$scratch/run" --storage-driver "$driver" "$@"; }
build() { # NAME CONTEXT [OPTION...]
  local name=$1 context=$2
  shift 2
  images bud --quiet --isolation chroot --pull-never --tag "$name" "$@" "$context" >"$scratch/built"
}
save() { # NAME: for the node
  local file=$NODE_DIR/images/${1##*/}
  images push --quiet "$1" "docker-archive:${file%:*}.tar:$1" >"$scratch/pushed"
}

# base makes what the Dockerfile builds in, where the registry can't be reached:
# the Go that is installed here, a shell, and the public roots.
base() {
  local name recipe
  name=docker.io/library/$(sed -nE 's/^FROM (.* )?(\S+) AS build$/\2/p' "$root/Dockerfile")
  cp "$(command -v busybox)" "$scratch/busybox"
  cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$scratch/roots.pem"
  cat >"$scratch/Dockerfile" <<END
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN mkdir -m 1777 /tmp
COPY roots.pem /etc/ssl/certs/ca-certificates.crt
COPY --from=sdk / /usr/local/go
ENV PATH=/usr/local/go/bin:/bin GOPATH=/go GOCACHE=/go/build GOTOOLCHAIN=local GOPROXY=$(go env GOPROXY) GOSUMDB=$(go env GOSUMDB)
END
  recipe=$({ cat "$scratch/Dockerfile"; go version; } | sha256sum)
  recipe=${recipe%% *}
  [[ $(images inspect --type image --format '{{index .OCIv1.Config.Labels "recipe"}}' "$name" 2>/dev/null) == "$recipe" ]] ||
    build "$name" "$scratch" --build-context "sdk=$(go env GOROOT)" --label "recipe=$recipe"
}

# with puts files of this machine into $1, each where it is here.
with() { # DIR FILE...
  local dir=$1
  shift
  cp --recursive --dereference --parents "$@" "$dir"
}

# libraries are the shared ones that programs need, and what loads them.
libraries() { ldd "$@" 2>/dev/null | grep -oE '/[^ :]+' | grep -F .so | sort -u; }

# node_agent is Node 22 of the npm package, and the SDK that its tests use.
node_agent() {
  local dir=$scratch/node modules=$root/test/e2e/node/node_modules program
  program=$(echo "$modules"/node-linux-*/bin/node)
  mkdir -p "$dir/usr/bin" "$dir/app/node_modules"
  cp "$program" "$dir/usr/bin/node"
  mapfile -t libs < <(libraries "$program")
  with "$dir" "${libs[@]}"
  tar -C "$modules" --exclude './node-linux-*' --exclude './conformance-*' --exclude ./@octokit -cf - . | tar -C "$dir/app/node_modules" -xf -
  cp "$here/agent.mjs" "$dir/app/"
  image node-agent '["/usr/bin/node", "/app/agent.mjs"]' "$dir"
}

# python_agent is Debian's Python, with a server and a client that many use.
python_agent() {
  local dir=$scratch/python program
  program=$(readlink -f /usr/bin/python3)
  mkdir -p "$dir/usr/bin" "$dir/app" "$dir/usr/lib/python3"
  cp "$program" "$dir/usr/bin/python3"
  mapfile -t libs < <(libraries "$program" /usr/lib/python3/dist-packages/*/*.so "/usr/lib/${program##*/}"/lib-dynload/*.so)
  with "$dir" "${libs[@]}" "/usr/lib/${program##*/}"
  dpkg --listfiles python3-{flask,waitress,requests} python3-{werkzeug,jinja2,markupsafe,itsdangerous,click,colorama} \
    python3-{urllib3,certifi,chardet,charset-normalizer,idna,six} | sed -n "s,^/\\(usr/lib/python3/\\),\\1,p" |
    tar -C / --no-recursion --verbatim-files-from --files-from - -cf - | tar -C "$dir" -xf -
  cp "$here/agent.py" "$dir/app/"
  image python-agent '["/usr/bin/python3", "-u", "/app/agent.py"]' "$dir"
}

image() { # NAME ENTRYPOINT CONTEXT
  printf 'FROM scratch\nCOPY . /\nUSER 65532:65532\nENTRYPOINT %s\n' "$2" >"$scratch/Dockerfile"
  build "localhost/$1:test" "$3" --file "$scratch/Dockerfile"
  save "localhost/$1:test"
}

program() { # NAME FILE: an image of one static program
  mkdir "$scratch/$1"
  cp "$2" "$scratch/$1/program"
  image "$1" '["/program"]' "$scratch/$1"
}

# wopproxy builds with the modules of this machine, and leaves none in the image.
wopproxy() {
  local options=(--volume "$(go env GOMODCACHE):/go/pkg/mod" --volume "$(go env GOCACHE):/go/build")
  [[ -d $root/.git ]] || options+=(--build-arg GOFLAGS=-buildvcs=false) # as the Dockerfile has it of worktrees
  build localhost/wopproxy:test "$root" "${options[@]}"
  save localhost/wopproxy:test
}

mkdir -p "$KUBE/store" "$NODE_DIR/images"
base
wopproxy
program pause "$KUBE/bin/pause"
program jaeger "$KUBE/bin/jaeger"
program go-tools "$NODE_DIR/bin/suite"
node_agent
python_agent
images rmi --prune --force >"$scratch/pruned" # those of earlier runs
