# Starts a script as a process that does not end with this connection.
[ "$(marker_uid)" = "$uid" ] || exit 65
if [ -d /run/systemd/system ] && have systemd-run; then
    systemctl reset-failed "capelin-$job.service" 2>/dev/null
    systemd-run --quiet --collect --unit="capelin-$job" --property=KillMode=process \
        /bin/sh "$script" </dev/null
else
    setsid /bin/sh "$script" </dev/null >/dev/null 2>&1 &
fi
