#!/bin/sh
# Makes the Debian package: deb.sh BINARY VERSION ARCHITECTURE DOCUMENTS FILE. Called by tools/package.sh.
# deploy/debian has what is in it beside the binary. It needs dpkg-deb and no other tool of Debian.
set -eu

binary=$1 version=$2 arch=$3 documents=$4 file=$5
root=$(cd "$(dirname "$0")/.." && pwd)
from=$root/deploy/debian
: "${SOURCE_DATE_EPOCH:=$(date +%s)}"
export SOURCE_DATE_EPOCH
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
trap 'exit 130' INT TERM
umask 022
chmod 0755 "$tree"

# put MODE FILE PLACE
put() {
    install -D -m "$1" "$2" "$tree/$3"
}

put 0755 "$binary" usr/bin/tickr
put 0755 "$from/tickr-as-service" usr/bin/tickr-as-service
put 0644 "$from/tickr.service" lib/systemd/system/tickr.service
put 0644 "$from/tickr.toml" etc/tickr/tickr.toml
put 0640 "$from/env" etc/tickr/env
doc=usr/share/doc/tickr
for document in "$documents"/*; do
    put 0644 "$document" "$doc/${document##*/}"
done
put 0644 "$from/copyright" $doc/copyright
gzip -n -9 -c "$tree/$doc/CHANGELOG.md" >"$tree/$doc/changelog.gz"
rm "$tree/$doc/CHANGELOG.md"
# A binary for another processor cannot be asked for its completions.
if completions=$("$binary" completions bash 2>/dev/null) && [ -n "$completions" ]; then
    mkdir -p "$tree/usr/share/bash-completion/completions"
    printf '%s\n' "$completions" >"$tree/usr/share/bash-completion/completions/tickr"
fi

# A dynamic binary needs the C library that it was built with, or a newer one. A static one needs none.
depends=passwd
if grep -qa 'ld-linux' "$binary"; then
    floor=$(grep -aoE 'GLIBC_2\.[0-9]+' "$binary" | sort -uV | tail -n 1)
    depends="libc6 (>= ${floor#GLIBC_}), libgcc-s1, passwd"
fi
mkdir "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<CONTROL
Package: tickr
Version: $version
Architecture: $arch
Maintainer: the authors of tickr <tickr@localhost>
Installed-Size: $(du -sk --apparent-size "$tree" | cut -f 1)
Depends: $depends
Suggests: mariadb-server, redis-server
Section: admin
Priority: optional
Description: durable job runner for teams on MySQL
 Programs enqueue jobs over HTTP, in SQL or from Rust. tickr runs them now,
 later or on a schedule, with retries, and loses none of them: MySQL or
 MariaDB has every job, and Redis is an index that may be lost.
CONTROL
printf '/etc/tickr/tickr.toml\n/etc/tickr/env\n' >"$tree/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 0755 "$from/$script" "$tree/DEBIAN/$script"
done
(cd "$tree" && find usr lib -type f -exec md5sum {} + | LC_ALL=C sort -k 2) >"$tree/DEBIAN/md5sums"

# A large binary is a debug build, which nothing ships: compressing it well would take minutes.
if [ "$(stat -c %s "$binary")" -gt 100000000 ]; then fast=-z1; else fast=-z9; fi
dpkg-deb --root-owner-group -Zgzip $fast --build "$tree" "$file" >&2
