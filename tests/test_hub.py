"""The hub is tried once, for a few seconds at most, whatever hangs."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from scala_lab import hub


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub.hub_reachable.cache_clear()
    yield
    hub.hub_reachable.cache_clear()


def test_name_server_that_never_answers(monkeypatch):
    let_go = threading.Event()

    def hang(*_, **__):
        let_go.wait(30)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    started = time.monotonic()
    assert not hub.hub_reachable()
    assert time.monotonic() - started < hub.TIMEOUT_SECONDS + 1
    assert not hub.hub_reachable()
    assert time.monotonic() - started < hub.TIMEOUT_SECONDS + 1, "the answer is kept"
    let_go.set()


def test_refusal_is_known_at_once(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{unused.getsockname()[1]}")
        started = time.monotonic()
        assert not hub.hub_reachable()
        assert time.monotonic() - started < 1


def test_proxy_that_listens_leads_to_the_hub(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub.hub_reachable()


@pytest.mark.parametrize("address", ["http://127.0.0.1:port", "http://", "://"])
def test_malformed_proxy_is_no_way_to_the_hub(monkeypatch, address):
    monkeypatch.setenv("HTTPS_PROXY", address)
    assert not hub.hub_reachable()


def test_offline_by_choice_does_not_try(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it tried"))
    assert not hub.hub_reachable()
