"""A model behind a web page and a small JSON interface."""

from dsokr.serve.app import create_app
from dsokr.serve.limits import Limits

__all__ = ["Limits", "create_app"]
