# Changes files of the host with a record of each change, and installs programs.
records=$state/bootstrap
fail() {
    echo "capelin: $1"
    finish 1
}
# Nothing is changed without a record of it, also on a full disk.
record() { printf '%s\n' "$*" >>"$records/manifest"; }

make_folder() {
    [ ! -d "$1" ] || return 0
    make_folder "$(dirname -- "$1")" || return 1
    record "folder $1" || return 1
    (umask 022 && mkdir -- "$1")
}

# keep PATH: record a file that an archive is about to create or replace.
keep() {
    if grep -qxF -e "created $1" -e "replaced $1" -e "program $1" "$records/manifest"; then
        return 0
    fi
    make_folder "$(dirname -- "$1")" || return 1
    if [ -e "$1" ] || [ -L "$1" ]; then
        mkdir -p "$records/backup$(dirname -- "$1")" && cp -a -- "$1" "$records/backup$1" || return 1
        record "program $1"
    else
        record "created $1"
    fi
}

# install_archive FILE SHA256: unpack an archive below the root folder.
install_archive() {
    echo "$2  $1" | sha256sum -c --status || {
        echo "the archive does not have the expected checksum"
        return 1
    }
    tar -tzf "$1" >"$job/files" || return 1
    if grep -qE -e '[^A-Za-z0-9._/@+-]' -e '(^|/)\.\.(/|$)' "$job/files"; then
        echo "the archive has names that are not permitted"
        return 1
    fi
    while read -r path; do
        case $path in
        */) ;;
        *) keep "/${path#./}" || return 1 ;;
        esac
    done <"$job/files"
    # A program that runs is not written to: tar removes the old file first.
    tar -xzf "$1" -C / --no-same-owner --keep-directory-symlink --no-overwrite-dir || return 1
    # Also parts of archives that no visit completed.
    rm -f -- "$1" "$(dirname -- "$1")"/*.part
    have systemctl && [ -d /run/systemd/system ] || return 0
    systemctl daemon-reload 9>&-
    for unit in $(sed -n 's|^.*systemd/system/\([^/]*\.service\)$|\1|p' "$job/files"); do
        systemctl is-enabled --quiet "$unit" && continue
        record "service $unit" && systemctl enable "$unit" 9>&- || return 1
    done
    if grep -q '/containerd$' "$job/files"; then systemctl restart containerd 9>&-; fi
}
