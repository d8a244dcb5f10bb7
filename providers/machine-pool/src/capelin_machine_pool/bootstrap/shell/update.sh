# Updates a node in place, once for a version. Only the process that creates `started` continues.
job=$state/update/$version
exec 9>>"$state/lock"
flock -n 9 || exit 75
[ "$(marker_uid)" = "$uid" ] || exit 65
umask 077
mkdir -p "$job"
# A controller that has not read the newest claim must not begin an older update.
current=$(cat "$state/update/current" 2>/dev/null)
is_newest "$version" "$current" || exit 73
echo "$version" >"$state/update/current.new"
mv "$state/update/current.new" "$state/update/current"
this_process update >"$job/started.$$"
ln "$job/started.$$" "$job/started" || exit 73
rm -f "$job/started.$$"
exec </dev/null >>"$job/output" 2>&1
sync

finish() {
    # Not the temporary files of another controller, which is writing its script.
    rm -f "$state"/update/script-???????????????? "$job"/*.commands
    echo "$1 no" >"$job/exit.new"
    sync
    mv "$job/exit.new" "$job/exit"
    exit 0
}
installed() { kubelet --version 2>/dev/null | awk '{ print $2 }'; }
upgrade_node() {
    [ "$(installed)" = "$version" ] || fail "the installed kubelet is $(installed), not $version"
    # What did not stop the host from joining does not stop its update.
    ignored=$(cat "$state/bootstrap/ignored-preflight-errors" 2>/dev/null)
    kubeadm upgrade node ${ignored:+"--ignore-preflight-errors=$ignored"} 9>&- ||
        fail "kubeadm upgrade node failed with exit code $?"
    if have systemctl && [ -d /run/systemd/system ]; then
        systemctl daemon-reload 9>&-
        systemctl restart kubelet 9>&- || fail "the kubelet does not start"
    else
        # Its supervisor starts it again.
        pkill -x kubelet
    fi
    finish 0
}
is_newest "$version" "$(installed)" || fail "the kubelet is $(installed), newer than $version"
has_space || fail "the disk is full: cannot write to $job"
