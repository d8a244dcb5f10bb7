"""What `capelin hooks` does: find an extension, make requests, call it, show what it said."""
