#!/usr/bin/env bash
# Makes a Debian package of the programs as they were built: scripts/deb.sh [DIR] writes pageserver_VERSION_ARCH.deb to
# DIR, by default `target`, and prints its path. TEST_PROFILE names another profile than release; DEB_COMPRESS=none
# saves the time that compressing takes. What is packed is all that the package has: the same commit and programs give
# the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=${CARGO_TARGET_DIR:-target}/${TEST_PROFILE:-release}
out=${1:-target}
arch=$(dpkg --print-architecture)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
commit=$(git log -1 --format=%h 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
# Later commits of one version are newer.
version=$version+$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d.%H%M%S).$commit

for program in pageserver pagectl compute-fs; do
    [ -x "$programs/$program" ] || { echo "deb: $programs/$program is not built; run make build" >&2; exit 1; }
done

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"
put() { install -D -m "$1" "$2" "$root$3"; }

for program in pageserver pagectl compute-fs; do
    put 0755 "$programs/$program" "/usr/bin/$program"
    # Names of functions stay, for backtraces.
    strip --strip-debug "$root/usr/bin/$program"
done

for unit in pageserver.service pageserver@.service pageserver-gateway.service; do
    sed 's#/usr/local/bin/#/usr/bin/#' "docs/deploy/$unit" >"$root/unit"
    put 0644 "$root/unit" "/usr/lib/systemd/system/$unit"
done
rm "$root/unit"

man=$root/usr/share/man/man1
mkdir -p "$man"
"$programs/pagectl" man "$man" >/dev/null
"$programs/pageserver" man "$man" >/dev/null
gzip -9n "$man"/*.1

complete() {
    mkdir -p "$root$(dirname "$2")"
    "$programs/pagectl" completion "$1" >"$root$2"
}
complete bash /usr/share/bash-completion/completions/pagectl
complete zsh /usr/share/zsh/vendor-completions/_pagectl
complete fish /usr/share/fish/vendor_completions.d/pagectl.fish

doc=/usr/share/doc/pageserver
for page in configuration operations durability; do put 0644 "docs/$page.md" "$doc/$page.md"; done
for file in README.md alerts.yml grafana.json fleet/{a,b,c}.toml fleet/computes-{two,three}.env; do
    put 0644 "docs/deploy/$file" "$doc/deploy/$file"
done
put 0644 README.md "$doc/README.md"
put 0644 packaging/debian/copyright "$doc/copyright"
put 0644 CHANGELOG.md "$doc/changelog"
gzip -9n "$root$doc/changelog"

# The newest symbols of the C library that a program asks for.
libc=$(for program in "$root"/usr/bin/*; do readelf -VW "$program"; done |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2)

mkdir "$root/DEBIAN"
for script in postinst prerm postrm; do install -m 0755 "packaging/debian/$script" "$root/DEBIAN/$script"; done
# Not what the disk has of it by now.
size=$(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@LIBC@/$libc/" -e "s/@SIZE@/$size/" \
    packaging/debian/control >"$root/DEBIAN/control"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

# Modes as the system's own files have them, whatever this user's mask is.
find "$root" -type d -exec chmod 0755 {} +
find "$root" -type f ! -perm -u=x -exec chmod 0644 {} +
mkdir -p "$out"
deb=$out/pageserver_${version}_$arch.deb
dpkg-deb --root-owner-group -Z"${DEB_COMPRESS:-xz}" --build "$root" "$deb" >/dev/null
echo "$deb"
