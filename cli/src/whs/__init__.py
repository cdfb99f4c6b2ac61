"""The command line of webhost.systems. It speaks the public API, and knows nothing else of the service."""

__version__ = "0.1.0"
