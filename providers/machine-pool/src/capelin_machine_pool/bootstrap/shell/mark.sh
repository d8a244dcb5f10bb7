# Marks the host as the machine's. Exit codes: 65 another machine's, 66 not clean,
# 75 try again.
umask 077
mkdir -p "$state"
exec 9>>"$state/lock"
flock -n 9 || exit 75
if [ -e "$state/marker" ]; then
    [ "$(marker_uid)" = "$uid" ] || exit 65
    exit 0
fi
[ -z "$(node_files)" ] || exit 66
if [ -e "$baseline/state" ]; then
    [ -z "$(differences)" ] || exit 66
else
    take_baseline || exit 1
fi
rm -rf "$state/bootstrap" "$state/clean" "$state/update"
mkdir "$state/bootstrap" "$state/clean"
printf '%s\n' "$uid" "$machine" >"$state/marker.new" || exit 1
sync
mv "$state/marker.new" "$state/marker"
