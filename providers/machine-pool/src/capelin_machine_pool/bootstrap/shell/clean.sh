# Undoes a bootstrap and verifies the result. The marker goes last, and only from a clean host.
job=$state/bootstrap
umask 077
exec 8>>"$state/clean.lock"
flock -n 8 || exit 75
[ "$(marker_uid)" = "$uid" ] || exit 65
mkdir -p "$state/clean"
rm -f "$state/clean/exit" "$state/clean/problems"
this_process clean >"$state/clean/started.new"
mv "$state/clean/started.new" "$state/clean/started"
exec </dev/null >"$state/clean/output" 2>&1

finish() {
    echo "$1 no" >"$state/clean/exit.new"
    sync
    mv "$state/clean/exit.new" "$state/clean/exit"
    exit 0
}
problem() {
    echo "problem: $1"
    echo "$1" >>"$state/clean/problems"
}
# A program that hangs must not hold up the others for ever.
limited() { timeout --kill-after=10 "$@" 8>&- 9>&-; }

# A bootstrap or an update that still runs ends first. Its processes are one group.
for started in "$job/started" "$state"/update/*/started; do
    if [ -e "$started" ] && is_alive "$started"; then
        read -r runner _ <"$started"
        kill -s TERM -- "-$runner" 2>/dev/null
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            is_alive "$started" || break
            sleep 1
        done
        kill -s KILL -- "-$runner" 2>/dev/null
    fi
done
exec 9>>"$state/lock"
if ! flock -w 30 9; then
    problem "another process holds the lock of the host"
    finish 1
fi

# Without the manifest, the bootstrap changed nothing.
if [ ! -e "$job/manifest" ]; then
    rm -f "$state/marker"
    rm -rf "$state/archives"
    exit 0
fi
# If the baseline is lost, the next look at the host decides whether it is clean.
has_baseline=yes
if [ ! -e "$baseline/state" ]; then
    has_baseline=no
    baseline=$state/clean/empty
    mkdir -p "$baseline" && : >"$baseline/state"
fi

if have systemctl && [ -d /run/systemd/system ]; then limited 60 systemctl stop kubelet; fi
pods() { limited 60 crictl --timeout=30s pods --quiet 2>"$state/clean/crictl"; }
has_no_pods() { listed=$(pods) && [ -z "$listed" ]; }
# A host whose runtime never ran, and which never became a node, has no pods.
if have crictl && { [ -n "$(node_files)" ] || [ -S /run/containerd/containerd.sock ] ||
    [ -S /run/crio/crio.sock ] || [ -S /run/cri-dockerd.sock ]; }; then
    # A pod that the kubelet had just begun may not be on the first list.
    for _ in 1 2 3; do
        limited 300 crictl --timeout=60s rmp --force --all
        has_no_pods && break
        sleep 1
    done
    if ! listed=$(pods); then
        problem "crictl pods failed: $(tail -n 1 "$state/clean/crictl" | cut -c 1-200)"
    elif [ -n "$listed" ]; then
        problem "crictl rmp left the pods $(echo "$listed" | cut -c 1-13 | tr '\n' ' ')"
    else
        # If the connection to a shim breaks, containerd forgets it, and it never ends.
        for _ in 1 2 3; do
            [ -n "$(shims)" ] || break
            sleep 1
        done
        for shim in $(shims); do
            echo "containerd has forgotten its process $shim"
            pkill -KILL -P "$shim"
            kill -s KILL "$shim"
        done
    fi
fi

# Volumes contain data of users: nothing is deleted below a folder where one is mounted.
new_mounts() { added mount kubernetes_mounts | sort -ru; }
for _ in 1 2 3; do
    new_mounts | while read -r path; do umount -- "$(printf '%b' "$path")"; done
    [ -n "$(new_mounts)" ] || break
    sleep 1
done
if [ -n "$(new_mounts)" ]; then
    problem "still mounted: $(new_mounts | tr '\n' ' ')"
    finish 1
fi

if have kubeadm; then
    limited 300 kubeadm reset --force || echo "kubeadm reset failed with exit code $?"
fi

remove() { rm -rf --one-file-system -- "$@"; }
remove /etc/kubernetes/kubelet.conf /etc/kubernetes/bootstrap-kubelet.conf \
    /etc/kubernetes/admin.conf /etc/kubernetes/super-admin.conf /etc/kubernetes/scheduler.conf \
    /etc/kubernetes/controller-manager.conf /etc/kubernetes/pki /etc/kubernetes/tmp \
    /var/lib/cni /run/flannel /run/calico /var/lib/calico /run/cilium
folders="/var/lib/kubelet /var/lib/etcd /etc/kubernetes/manifests"
for folder in $folders /var/log/pods /var/log/containers; do
    [ ! -d "$folder" ] || find "$folder" -xdev -mindepth 1 -delete
done
cni_files() { find /etc/cni/net.d ! -type d 2>/dev/null; }
added file cni_files | while read -r path; do remove "$path"; done
[ ! -d /etc/cni/net.d ] || find /etc/cni/net.d -mindepth 1 -type d -empty -delete

if have ip; then
    ip netns list 2>/dev/null | awk '/^cni-/ { print $1 }' | while read -r name; do
        ip netns delete "$name"
    done
    for link in $(added link pod_links); do ip link delete "$link"; done
    # Not the default route: without it, the host may be unreachable.
    [ "$has_baseline" = no ] || added route routes | grep -v '^-[46] default ' |
        while read -r route; do
            # shellcheck disable=SC2086 # the words of a route
            ip ${route%% *} route delete ${route#* }
        done
fi
if have ipvsadm; then ipvsadm --clear; fi
if have nft; then
    for family in ip ip6; do nft delete table "$family" kube-proxy 2>/dev/null; done
fi
# A table that the baseline does not have becomes empty.
if [ "$has_baseline" = yes ]; then
    for family in iptables ip6tables; do
        have "$family-save" || continue
        "$family-save" 2>/dev/null | sed -n 's/^\*//p' | while read -r table; do
            for chain in $("$family-save" -t "$table" | sed -n 's/^:\([^ ]*\) [AD].*/\1/p'); do
                "$family" -t "$table" -P "$chain" ACCEPT
            done
            "$family" -t "$table" -F && "$family" -t "$table" -X
        done
        sed -n "/^# $family\$/,/^# /{/^#/d;p}" "$baseline/rules" | "$family-restore"
    done
fi

# The manifest from its end: what the bootstrap did last goes first.
sed '1!G;h;$!d' "$job/manifest" | while read -r what rest; do
    case $what in
    created) rm -f -- "$rest" ;;
    replaced) cp -p -- "$job/backup$rest" "$rest" ;;
    program)
        # It may run, so it is not written to.
        cp -a -- "$job/backup$rest" "$rest.capelin" && mv -f -- "$rest.capelin" "$rest"
        ;;
    service) systemctl disable --now "$rest" ;;
    folder) rmdir -- "$rest" 2>/dev/null ;;
    user)
        pkill -KILL -u "$rest"
        userdel --remove "$rest"
        ;;
    group) groupdel "$rest" ;;
    esac
done
if grep -qE '^(program|service) ' "$job/manifest" && [ -d /run/systemd/system ]; then
    systemctl daemon-reload 8>&- 9>&-
    if grep -q '^program .*/containerd$' "$job/manifest"; then
        systemctl restart containerd 8>&- 9>&-
    fi
fi
rm -f /run/cluster-api/bootstrap-success.complete
rmdir /run/cluster-api /run/kubeadm 2>/dev/null

if [ -e "$state/clean/commands" ]; then
    limited 600 /bin/sh "$state/clean/commands" ||
        problem "the commands of cleanCommands failed with exit code $?"
fi

while read -r what rest; do
    case $what in
    created) [ ! -e "$rest" ] || problem "the file $rest still exists" ;;
    replaced | program)
        cmp -s -- "$job/backup$rest" "$rest" || problem "the file $rest is not as it was"
        ;;
    user) ! getent passwd "$rest" >/dev/null || problem "the user $rest still exists" ;;
    group) ! getent group "$rest" >/dev/null || problem "the group $rest still exists" ;;
    esac
done <"$job/manifest"
for folder in $folders; do
    [ -z "$(ls -A "$folder" 2>/dev/null)" ] || problem "$folder is not empty"
done
for path in /etc/kubernetes/kubelet.conf /etc/kubernetes/admin.conf /etc/kubernetes/pki; do
    [ ! -e "$path" ] || problem "$path still exists"
done
for name in kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd; do
    # The kernel shortens names.
    ! runs -x "$(echo "$name" | cut -c 1-15)" || problem "$name still runs"
done
# Without space, nothing can be compared.
has_space || problem "the disk is full: cannot write to $state"
[ "$has_baseline" = no ] || differences | head -n 20 | while read -r line; do problem "$line"; done

if [ -e "$state/clean/problems" ]; then finish 1; fi
# The marker first: with it and without the file `started`, the bootstrap could run again.
rm -f "$state/marker"
sync
rm -rf "$job" "$state/update" "$state/archives"
