"""The lifecycle Runtime Extension: policies for upgrades, topology and in-place updates."""
