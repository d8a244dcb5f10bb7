# Starts a script as a process that does not end with this connection.
[ "$(marker_uid)" = "$uid" ] || exit 65
# The result of the last clean-up must not count as that of this one, which starts in a moment.
if [ "$job" = clean ]; then rm -f "$state/clean/exit"; fi
if [ -d /run/systemd/system ] && have systemd-run; then
    systemctl reset-failed "capelin-$job.service" 2>/dev/null
    systemd-run --quiet --collect --unit="capelin-$job" --property=KillMode=process \
        /bin/sh "$script" </dev/null
else
    setsid /bin/sh "$script" </dev/null >/dev/null 2>&1 &
fi
