"""What holds for all tests: how fast this machine is today is no property of the code."""

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
