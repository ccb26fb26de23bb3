#!/usr/bin/env bash
# Prints where promtool is, which checks the text of /metrics. If need be it is taken out of Debian's package
# prometheus, which is not installed: that would start a server.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

if command -v promtool; then
    exit
fi
dir=${PROMTOOL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pageserver-promtool}
if [ ! -x "$dir/promtool" ]; then
    command -v apt-get >/dev/null || { echo "promtool: install Prometheus' programs yourself" >&2; exit 1; }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # The user that root would download as may not write here.
    download() { (cd "$work" && apt-get -q -o "APT::Sandbox::User=$(id -un)" download prometheus) >&2; }
    download || { as_root apt-get update -q >&2 && download; }
    dpkg-deb -x "$work"/prometheus_*.deb "$work/package"
    mkdir -p "$dir"
    mv "$work/package/usr/bin/promtool" "$dir/promtool.new"
    mv "$dir/promtool.new" "$dir/promtool"
fi
echo "$dir/promtool"
