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

# Without a baseline, the bootstrap did not begin.
if [ ! -d "$job/baseline" ]; then
    rm -f "$state/marker"
    exit 0
fi

if have systemctl && [ -d /run/systemd/system ]; then limited 60 systemctl stop kubelet; fi
if have crictl; then limited 120 crictl rmp --force --all; fi

# Volumes contain data of users: nothing is deleted below a folder where one is mounted.
new_mounts() { kubernetes_mounts | grep -vxF -f "$job/baseline/mounts" | sort -ru; }
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
for folder in /var/lib/kubelet /var/lib/etcd /etc/kubernetes/manifests; do
    [ ! -d "$folder" ] || find "$folder" -xdev -mindepth 1 -delete
done
cni_files | sort -r | grep -vxF -f "$job/baseline/cni" | while read -r path; do remove "$path"; done

is_pod_link() {
    case $1 in
    cni* | flannel* | veth* | cali* | vxlan.calico | cilium* | lxc* | kube-* | nodelocaldns | tunl0) ;;
    *) return 1 ;;
    esac
}
new_links() { links | grep -vxF -f "$job/baseline/links"; }
if have ip; then
    ip netns list 2>/dev/null | awk '/^cni-/ { print $1 }' | while read -r name; do
        ip netns delete "$name"
    done
    for link in $(new_links); do
        if is_pod_link "$link"; then ip link delete "$link"; fi
    done
fi
if have ipvsadm; then ipvsadm --clear; fi
if have nft; then
    for family in ip ip6; do nft delete table "$family" kube-proxy 2>/dev/null; done
fi
# A table that the baseline does not have becomes empty.
if [ -e "$job/baseline/rules" ]; then
    for family in iptables ip6tables; do
        have "$family-save" || continue
        "$family-save" 2>/dev/null | sed -n 's/^\*//p' | while read -r table; do
            for chain in $("$family-save" -t "$table" | sed -n 's/^:\([^ ]*\) [AD].*/\1/p'); do
                "$family" -t "$table" -P "$chain" ACCEPT
            done
            "$family" -t "$table" -F && "$family" -t "$table" -X
        done
        sed -n "/^# $family\$/,/^# /{/^#/d;p}" "$job/baseline/rules" | "$family-restore"
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
for folder in /var/lib/kubelet /var/lib/etcd /etc/kubernetes/manifests; do
    [ -z "$(ls -A "$folder" 2>/dev/null)" ] || problem "$folder is not empty"
done
for path in /etc/kubernetes/kubelet.conf /etc/kubernetes/admin.conf /etc/kubernetes/pki; do
    [ ! -e "$path" ] || problem "$path still exists"
done
for name in kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd; do
    # The kernel shortens names. Processes that have ended (Z) do not count.
    ! pgrep -r D,I,R,S,T,t -x "$(echo "$name" | cut -c 1-15)" >/dev/null ||
        problem "$name still runs"
done
for link in $(new_links); do
    if is_pod_link "$link"; then problem "the network link $link still exists"; fi
done
# Without space, the files that are compared would be empty.
has_space || problem "the disk is full: cannot write to $state"
! cni_files | grep -qvxF -f "$job/baseline/cni" || problem "/etc/cni/net.d has new files"
if [ -e "$job/baseline/rules" ]; then
    rules >"$state/clean/rules"
    # A table that the kernel loaded meanwhile has no rules, and no other policy.
    for file in "$job/baseline/rules" "$state/clean/rules"; do
        sed -e '/^# /d' -e '/^\*/d' -e '/^COMMIT/d' -e '/^:[A-Z]* ACCEPT/d' "$file" |
            sort >"$file.sorted"
    done
    cmp -s "$job/baseline/rules.sorted" "$state/clean/rules.sorted" ||
        problem "the rules of iptables are not as they were"
fi

if [ -e "$state/clean/problems" ]; then finish 1; fi
# The marker first: with it and without the file `started`, the bootstrap could run again.
rm -f "$state/marker"
sync
rm -rf "$job" "$state/update" "$state/archives"
