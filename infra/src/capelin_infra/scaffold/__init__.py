"""What `capelin new` writes: a folder of files beside this one, with names filled in."""
