"""The plugin as a folder: Pulumi installs `requirements.txt` and starts this file."""

from capelin_infra.plugin import main

main()
