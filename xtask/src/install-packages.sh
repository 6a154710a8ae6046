# Installs the Debian packages that are its arguments. Runs as root, by `cargo xtask`.
set -eu

# The tests start servers of their own, so those of the packages stay off. Debian asks this file whether a
# service may start; one that an administrator has put there is respected. Ours is removed at the end, and
# says no only as long as this script runs: if that is killed, what it leaves behind changes nothing.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ] || grep -q 'Written by cargo xtask' "$policy"; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    cat >"$policy" <<POLICY
#!/bin/sh
# Written by cargo xtask while it installs packages; may be removed.
if [ -d /proc/$$ ]; then exit 101; fi
exit 0
POLICY
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
# Another apt may be at work, such as the nightly upgrade of a fresh machine.
apt_get() { apt-get -o DPkg::Lock::Timeout=300 "$@"; }

apt_get update || echo 'the list of packages could not be updated; the old one may do' >&2
apt_get install -y --no-install-recommends "$@"
