"""The suite runs without a network, and would notice code that uses one."""

import socket
import threading

import pytest


def test_a_name_outside_is_not_looked_up():
    with pytest.raises(OSError, match="no network"):
        socket.getaddrinfo("example.org", 443)


@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_an_address_outside_is_not_connected(method):
    with socket.socket() as client, pytest.raises(OSError, match="no network"):
        getattr(client, method)(("192.0.2.1", 80))


def test_the_machine_itself_may_be_connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted = threading.Thread(target=lambda: server.accept()[0].close())
        accepted.start()
        socket.create_connection(server.getsockname(), timeout=5).close()
        accepted.join(5)
