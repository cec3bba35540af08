"""Norms and linear solves over chunked arrays larger than memory."""

from tilewise._version import __version__

__all__ = ["__version__"]
