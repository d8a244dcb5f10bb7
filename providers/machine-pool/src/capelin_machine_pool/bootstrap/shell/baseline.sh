# The baseline: the state of the host before its first use. No bootstrap writes it, and no clean-up
# removes it.
baseline=$state/baseline

is_pod_link() {
    case $1 in
    cni* | flannel* | veth* | cali* | vxlan.calico | cilium* | lxc* | kube-* | nodelocaldns | tunl0) ;;
    *) return 1 ;;
    esac
}
pod_links() {
    for link in /sys/class/net/*; do
        if is_pod_link "${link##*/}"; then echo "${link##*/}"; fi
    done
}
kubernetes_mounts() {
    awk '$2 ~ "^/(var/lib/kubelet|run/netns|var/run/netns)/" { print $2 }' /proc/mounts
}
# Without those of the kernel, DHCP, router advertisements and the host's own network settings.
routes() {
    have ip || return 0
    for family in -4 -6; do
        ip -o "$family" route show table main 2>/dev/null | awk -v family="$family" '{
            line = family; proto = ""; gateway = 0
            for (i = 1; i <= NF; i++) {
                if ($i == "proto") proto = $(i + 1)
                if ($i == "via") gateway = 1
                if ($i == "expires") i++
                else if ($i != "linkdown" && $i != "dead") line = line " " $i
            }
            if (proto ~ /^(dhcp|ra|static)$/ || (proto == "kernel" && !gateway)) next
            print line
        }'
    done
}
rules() {
    for family in iptables ip6tables; do
        # The output of the legacy variant has no rules that the other variant wrote.
        have "$family-save" && echo "# $family" &&
            "$family-save" 2>/dev/null | sed -e '/^#/d' -e 's/\[[0-9]*:[0-9]*\]/[0:0]/'
    done
    return 0
}
# A table that the kernel loaded meanwhile has no rules, and no other policy.
rule_lines() {
    rules | awk '/^# / { family = $2 } /^\*/ { table = substr($1, 2) }
        /^-/ || (/^:/ && $2 != "ACCEPT") { print family, table, $0 }'
}
node_files_and_logs() {
    find /etc/kubernetes /etc/cni/net.d /var/lib/kubelet /var/lib/etcd /var/lib/cni /var/log/pods \
        /var/log/containers /etc/sudoers.d -xdev ! -type d 2>/dev/null
}
# Users who can log in.
users() { awk -F: '$3 == 0 || $7 !~ "/(nologin|false|sync)$" { print $1 }' /etc/passwd; }

snapshot() {
    {
        pod_links | sed 's/^/link /'
        kubernetes_mounts | sed 's/^/mount /'
        routes | sed 's/^/route /'
        rule_lines | sed 's/^/rule /'
        node_files_and_logs | sed 's/^/file /'
        users | sed 's/^/user /'
    } | sort -u
}

# Records the baseline as a whole, or not at all.
take_baseline() {
    rm -rf "$baseline.new"
    mkdir -p "$baseline.new" && has_space || return 1
    snapshot >"$baseline.new/state"
    rules >"$baseline.new/rules"
    # With a baseline that is not complete, a clean-up would take too much for new.
    has_space || return 1
    sync
    rm -rf "$baseline"
    mv "$baseline.new" "$baseline"
}

# The same state gives the same digest, also on a host that was installed again.
baseline_digest() { sha256sum <"$baseline/state" | cut -d' ' -f1; }

# added KIND COMMAND: what the command lists and the baseline does not have.
added() { "$2" | sed "s/^/$1 /" | grep -vxF -f "$baseline/state" | sed "s/^$1 //"; }

# Processes that have ended (Z) do not count.
running() { pgrep -r D,I,R,S,T,t "$@"; }
runs() { running "$@" >/dev/null; }
# The parents of the processes in pods.
shims() { running -f 'containerd-shim[^ ]* .*-namespace k8s[.]io'; }

# The differences of the host from its baseline, one a line.
differences() {
    [ -z "$(shims)" ] || echo "containerd-shim of a pod still runs"
    snapshot | awk -v baseline="$baseline/state" '
        BEGIN { while ((getline line <baseline) > 0) missing[line] }
        !($0 in missing) { print "new " $0 }
        { delete missing[$0] }
        END { for (line in missing) if (line ~ /^rule /) print "missing " line }
    ' | sort
}
