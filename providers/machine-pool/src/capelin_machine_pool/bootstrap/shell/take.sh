# Records the baseline of a host without a machine, and prints nothing. Exit code: 75 try again.
umask 077
mkdir -p "$state"
exec 9>>"$state/lock"
flock -n 9 || exit 75
# Remains of a machine must not become a part of it.
if [ -e "$state/marker" ] || [ -n "$(node_files)" ]; then exit 0; fi
if [ "$renew" = no ] && [ -e "$baseline/state" ]; then exit 0; fi
take_baseline
