"""A model behind a web page and a small JSON interface."""

from dsokr.errors import import_extra

import_extra("fastapi", "serve")
import_extra("prometheus_client", "serve")

from dsokr.serve.app import create_app, run  # noqa: E402 # after the check that FastAPI is there
from dsokr.serve.bodies import Limits  # noqa: E402
from dsokr.serve.operations import Key, add_key, read_keys  # noqa: E402
