# Executes bootstrap data once. Only the process that creates the file `started` continues.
job=$state/bootstrap
exec 9>>"$state/lock"
flock -n 9 || exit 75
[ "$(marker_uid)" = "$uid" ] || exit 65
umask 077
this_process "$digest" >"$job/started.$$"
ln "$job/started.$$" "$job/started" || exit 73
rm -f "$job/started.$$"
exec </dev/null >>"$job/output" 2>&1
sync

finish() {
    reached=no
    if [ -e /run/cluster-api/bootstrap-success.complete ]; then reached=yes; fi
    # They contain tokens and keys.
    rm -f "$job"/script* "$job"/*.commands
    echo "$1 $reached" >"$job/exit.new"
    sync
    mv "$job/exit.new" "$job/exit"
    exit 0
}

# put PATH OWNER MODE write|append <CONTENT
put() {
    make_folder "$(dirname -- "$1")" || return 1
    if grep -qxF -e "created $1" -e "replaced $1" "$job/manifest"; then
        : # a later entry for the same file
    elif [ -e "$1" ]; then
        mkdir -p "$job/backup$(dirname -- "$1")" && cp -pL -- "$1" "$job/backup$1" || return 1
        record "replaced $1" || return 1
    else
        record "created $1" || return 1
        : >"$1" || return 1
    fi
    chmod go-rwx -- "$1" || return 1
    if [ "$4" = append ]; then cat >>"$1"; else cat >"$1"; fi || return 1
    chown -- "$2" "$1" && chmod -- "$3" "$1"
}

add_group() {
    if [ -z "$1" ] || getent group "$1" >/dev/null; then return 0; fi
    record "group $1" || return 1
    groupadd -- "$1"
}

# add_user NAME GECOS HOME SHELL GROUPS PRIMARY-GROUP: a user that exists stays as it is.
add_user() {
    getent passwd "$1" >/dev/null && return 0
    for group in $(echo "$5 $6" | tr , ' '); do
        add_group "$group" || return 1
    done
    record "user $1" || return 1
    useradd --create-home --comment "$2" ${3:+--home-dir "$3"} --shell "${4:-/bin/bash}" \
        ${5:+--groups "$5"} ${6:+--gid "$6"} "$1"
}

home_of() { getent passwd "$1" | cut -d: -f6; }

set_time_servers() {
    if have chronyc && [ -d /etc/chrony/sources.d ]; then
        for server in "$@"; do echo "server $server iburst"; done |
            put /etc/chrony/sources.d/capelin.sources root:root 0644 write &&
            chronyc reload sources
    elif [ -e /lib/systemd/system/systemd-timesyncd.service ]; then
        printf '[Time]\nNTP=%s\n' "$*" |
            put /etc/systemd/timesyncd.conf.d/capelin.conf root:root 0644 write &&
            systemctl restart systemd-timesyncd 9>&-
    else
        echo "the host has neither chrony nor systemd-timesyncd"
        return 1
    fi
}

# The manifest shows that something may have changed.
has_space && : >"$job/manifest" || fail "cannot write to $job"
echo "$ignored" >"$job/ignored-preflight-errors"
sync
rm -f /run/cluster-api/bootstrap-success.complete
