#!/usr/bin/env bash
# Prints where helm is, which checks and renders the chart in docs/deploy/helm. If need be it is built first, with Go:
# that takes a minute or two, so `make setup` leaves it to those who ask.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/go.sh
VERSION=v3.20.2
if command -v helm >/dev/null && helm version --short | grep -q '^v3\.'; then
    command -v helm
    exit
fi
dir=${HELM_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pageserver-helm/$VERSION}
if [ ! -x "$dir/helm" ]; then
    build=$(mktemp -d)
    trap 'chmod -R u+w "$build" && rm -rf "$build"' EXIT
    find_go "$build"
    echo "building helm $VERSION" >&2
    export GOPATH="$build/path" GOCACHE="$build/cache" GOBIN="$build/bin" GOFLAGS=-mod=mod
    go install -ldflags "-s -w -X helm.sh/helm/v3/internal/version.version=$VERSION" \
        "helm.sh/helm/v3/cmd/helm@$VERSION" >&2
    mkdir -p "$dir"
    mv "$build/bin/helm" "$dir/helm.new"
    mv "$dir/helm.new" "$dir/helm"
fi
echo "$dir/helm"
