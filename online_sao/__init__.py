"""Online SAO: a chat service whose model learns, live, from the scores its users give."""

from importlib.metadata import version

__version__ = version("online-sao")
