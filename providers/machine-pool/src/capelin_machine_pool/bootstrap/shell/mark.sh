# Marks the host as the machine's. Exit codes: 65 another machine's, 66 a node, 75 try again.
umask 077
mkdir -p "$state"
exec 9>>"$state/lock"
flock -n 9 || exit 75
if [ -e "$state/marker" ]; then
    [ "$(marker_uid)" = "$uid" ] || exit 65
    exit 0
fi
[ -z "$(node_files)" ] || exit 66
rm -rf "$state/bootstrap" "$state/clean" "$state/update"
mkdir "$state/bootstrap" "$state/clean"
printf '%s\n' "$uid" "$machine" >"$state/marker.new" || exit 1
sync
mv "$state/marker.new" "$state/marker"
