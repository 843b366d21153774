from __future__ import annotations

import socket
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from scala_lab.training.distributed import reserved_port


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_reserved_port_is_the_stores_and_nobody_elses(host):
    with reserved_port(host) as reserved:
        port = reserved.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        patience = timedelta(minutes=5)
        store = TCPStore("127.0.0.1", port, 1, is_master=True, timeout=patience)
        store.set("word", "here")
        assert TCPStore("127.0.0.1", port, 1, is_master=False, timeout=patience).get("word") == b"here"
