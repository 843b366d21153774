"""Whether the model and data hub can be reached, decided in seconds rather than by retries."""

import functools
import os
import socket
import threading
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 3.0


def offline_by_choice() -> bool:
    """Whether an environment variable forbids the network."""
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").lower() in {"1", "true", "yes", "on"} for name in names)


@functools.cache
def hub_reachable() -> bool:
    """Try to connect to the hub or to the proxy, for at most TIMEOUT_SECONDS and once per process."""
    if offline_by_choice():
        return False
    from huggingface_hub.constants import ENDPOINT

    address = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or ENDPOINT
    connected = threading.Event()

    def connect() -> None:
        try:
            parts = urlsplit(address)
            port = parts.port or (80 if parts.scheme == "http" else 443)
            socket.create_connection((parts.hostname or "", port), timeout=TIMEOUT_SECONDS).close()
        except (OSError, ValueError):  # ValueError: the address itself is malformed
            return
        connected.set()

    # In a thread because a name look-up has no timeout of its own, and a dead name server takes half a minute.
    probe = threading.Thread(target=connect, name="hub-probe", daemon=True)
    probe.start()
    probe.join(TIMEOUT_SECONDS)
    return connected.is_set()
