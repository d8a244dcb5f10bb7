# Shared by all scripts. Everything that Capelin keeps on a host is in this folder.
state=/var/lib/capelin
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LC_ALL=C
have() { command -v "$1" >/dev/null 2>&1; }

# The start time of a process, which distinguishes it from a later one with the same id.
start_time() {
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # shellcheck disable=SC2086 # the fields after the name of the program
    set -- ${stat##*) }
    [ "$1" != Z ] || return 1
    echo "${20}"
}

# Whether the process runs that a file `started` names.
is_alive() {
    read -r pid start boot _ <"$1" || return 1
    [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ] && [ "$(start_time "$pid")" = "$start" ]
}

# A line for a file `started`: this process and the digest of its work.
this_process() {
    echo "$$ $(start_time $$) $(cat /proc/sys/kernel/random/boot_id) $1"
}

# Files of a Kubernetes node.
node_files() {
    for path in /etc/kubernetes/kubelet.conf /etc/kubernetes/admin.conf \
        /var/lib/kubelet/config.yaml /var/lib/etcd/member; do
        [ ! -e "$path" ] || echo "$path"
    done
}

# Whether the folder has space for all that the scripts write.
has_space() {
    mkdir -p "$state" && head -c 262144 /dev/zero >"$state/probe" 2>/dev/null
    probed=$?
    rm -f "$state/probe"
    return "$probed"
}

# Whether a version is the newest of two, or equal. An empty one is the oldest, and a pre-release is
# older than its release: `sort` knows that of names with a tilde.
is_newest() {
    [ "$(printf '%s\n' "$1" "$2" | sed 's/-/~/' | sort -V | tail -n 1 | sed 's/~/-/')" = "$1" ]
}

marker_uid() { head -n 1 "$state/marker" 2>/dev/null; }
