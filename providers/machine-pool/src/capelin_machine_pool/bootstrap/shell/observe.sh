# Prints the state of the host as lines of key=value. Free text is in base64.
encoded() { base64 | tr -d '\n'; }
version=
echo "boot=$(cat /proc/sys/kernel/random/boot_id)"
echo "hostname=$(uname -n)"
if [ -e "$state/marker" ]; then
    uid=$(marker_uid)
    # A clean-up may have removed it before it was read.
    if [ -n "$uid" ] || [ -e "$state/marker" ]; then echo "marker=$uid"; fi
fi
if [ -e "$state/update/current" ]; then
    version=$(cat "$state/update/current")
    echo "update.version=$version"
fi
for job in bootstrap update clean; do
    folder=$state/$job
    if [ "$job" = update ]; then folder=$folder/$version; fi
    [ -e "$folder/started" ] || continue
    if is_alive "$folder/started"; then echo "$job.alive=yes"; else echo "$job.alive=no"; fi
    # After the check of the process: it writes this file last.
    if [ -e "$folder/exit" ]; then echo "$job.exit=$(head -c 100 "$folder/exit")"; fi
    if [ -e "$folder/output" ]; then
        echo "$job.output=$(tail -c "$max_output" "$folder/output" | encoded)"
    fi
done
node_files | sed 's/^/node=/'
if [ -e "$baseline/state" ]; then
    echo "baseline=$(baseline_digest)"
    # A machine changes its host.
    [ -e "$state/marker" ] || differences | head -n 20 | sed 's/^/difference=/'
fi
for program in flock base64 awk; do
    have "$program" || echo "missing=$program"
done
echo "end="
