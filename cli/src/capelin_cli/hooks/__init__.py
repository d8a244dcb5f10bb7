"""`capelin hooks`: finds extensions, makes requests, sends them, and shows the responses."""
