#!/usr/bin/env bash
# Installs what is missing to build for aarch64 elsewhere: scripts/aarch64.sh [run]
# With "run" also what runs such programs: qemu's emulation of a user's programs.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

TARGET=aarch64-unknown-linux-gnu

install_packages() {
    local missing=()
    command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
    [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || missing+=(libc6-dev-arm64-cross)
    [ "${1:-}" != run ] || command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
    [ "${#missing[@]}" != 0 ] || return 0
    command -v apt-get >/dev/null || { echo "aarch64: install these yourself: ${missing[*]}" >&2; exit 1; }
    echo "packages: ${missing[*]}"
    install() { as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"; }
    install "${missing[@]}" || { as_root apt-get update -q && install "${missing[@]}"; }
}

# Not in rust-toolchain.toml: every call of cargo would want it there, also of who builds for his own machine only.
install_target() {
    command -v rustup >/dev/null || { echo "aarch64: no rustup: install Rust's target $TARGET yourself" >&2; exit 1; }
    rustup target list --installed | grep -qx "$TARGET" || rustup target add "$TARGET"
}

install_packages "$@"
install_target
echo "aarch64: $(aarch64-linux-gnu-gcc --version | head -n 1)"
