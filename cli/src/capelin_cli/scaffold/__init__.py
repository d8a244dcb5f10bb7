"""The templates of `capelin new`: files in these folders, with placeholders for names."""
