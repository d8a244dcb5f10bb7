# Prints the facts of a machine as lines of key=value. It changes nothing.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
have() { command -v "$1" >/dev/null 2>&1; }
limited() { timeout 5 "$@" 2>/dev/null </dev/null; }
yes_if() { if [ "$2" "$3" ]; then echo "$1=yes"; fi; }

echo "cpus=$(getconf _NPROCESSORS_ONLN)"
echo "memory=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)"
df -Pk /var/lib | awk 'NR == 2 { print "disk=" $2; print "free=" $4 }'
echo "arch=$(uname -m)"
echo "kernel=$(uname -r)"
if [ -r /etc/os-release ]; then
    echo "os=$(. /etc/os-release; echo "$PRETTY_NAME")"
fi
awk 'NR == 2 { print "swap=yes" }' /proc/swaps
yes_if systemd -d /run/systemd/system
yes_if cgroup2 -e /sys/fs/cgroup/cgroup.controllers
echo "forward=$(cat /proc/sys/net/ipv4/ip_forward)"
for module in overlay br_netfilter; do
    [ -d "/sys/module/$module" ] || limited modprobe --dry-run "$module" ||
        grep -qw "$module" /proc/filesystems || echo "module=$module"
done
# Sockets that listen (0A), by the port in hexadecimal digits.
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
    awk '$4 == "0A" { n = split($2, part, ":"); print "port=" part[n] }' |
    grep -E '=(280A|2810|2808|2809)$' | sort -u
if [ -S /run/containerd/containerd.sock ]; then
    echo "runtime=containerd $(limited containerd --version | awk '{ print $3 }')"
elif [ -S /run/crio/crio.sock ] || [ -S /var/run/crio/crio.sock ]; then
    echo "runtime=cri-o $(limited crio --version | awk 'NR == 1 { print $3 }')"
fi
if have kubelet; then echo "kubelet=$(limited kubelet --version | awk '{ print $2 }')"; fi
if have kubeadm; then echo "kubeadm=$(limited kubeadm version --output=short)"; fi
echo "clock=$(date +%s)"
echo "facts-end="
