"""Decrypts a backup: `python -m capelin_control_plane.open_backup --help`."""

import argparse
import sys
from pathlib import Path

from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.files import open_backup


def main(arguments: list[str] | None = None) -> int:
    """Decrypt a backup and print its revision. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Decrypts a backup of a control plane.")
    parser.add_argument("manifest", type=Path, help="Manifest of the backup, a .json file.")
    parser.add_argument("target", type=Path, help="Folder for etcd.db and authorities.json.")
    parser.add_argument("--key-file", type=Path, required=True, help="File with the key.")
    options = parser.parse_args(arguments)
    try:
        manifest = open_backup(options.manifest, options.key_file.read_bytes(), options.target)
    except (BackupError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"etcd {manifest.etcd_version}, revision {manifest.revision}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
