"""A manager's cache for clients in tests."""

from capelin.api import BaseObject
from capelin.client import Client, ObjectCache


def use_cache(client: Client, *delivered: BaseObject) -> None:
    """Give a client a cache, as if watches of their kinds had delivered these objects."""
    cache = ObjectCache()
    for kind in {type(obj) for obj in delivered}:
        feed = cache.follow(kind.resource)
        feed.open(cache)
        feed.deliver([feed.delivered(obj.dump()) for obj in delivered if type(obj) is kind])
    client.use_cache(cache)
