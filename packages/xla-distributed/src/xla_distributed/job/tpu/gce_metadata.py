"""Attributes of a Google Cloud VM, as its metadata server tells them."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from functools import cache

from xla_distributed import settings

ROOT_URL = "http://metadata.google.internal/computeMetadata/v1"
_TRIES, _TIMEOUT_SECONDS, _PAUSE_SECONDS = 3, 10, 0.5
# The server is next door, never behind a proxy.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_metadata(key: str) -> str:
    """The attribute `key` of this VM, such as `accelerator-type`. GCE_METADATA_HOST names another server, as for Google's own clients.

    Raises RuntimeError if the server is not there or has no such attribute.
    """
    host = settings.GCE_METADATA_HOST.get()
    root = f"http://{host}/computeMetadata/v1" if host else ROOT_URL
    return _fetch(f"{root}/instance/attributes/{key}")


@cache
def _fetch(url: str) -> str:
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    tries = 1
    while True:
        try:
            with _direct.open(request, timeout=_TIMEOUT_SECONDS) as response:
                return str(response.read().decode())
        except OSError as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if refused or tries == _TRIES:
                raise RuntimeError(
                    f"the metadata server does not give {url} ({error}): is this a Cloud TPU VM? Elsewhere set TPU_SKIP_MDS_QUERY=1, "
                    "and TPU_ACCELERATOR_TYPE, TPU_WORKER_ID and TPU_WORKER_HOSTNAMES"
                ) from error
        tries += 1
        time.sleep(_PAUSE_SECONDS)
