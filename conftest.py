"""Settings of every test run."""

from hypothesis import settings

# Machines are shared and noisy: an example that takes long is no mistake.
settings.register_profile("capelin", deadline=None)
settings.load_profile("capelin")
