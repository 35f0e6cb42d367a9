"""taopd-probe, the health check of containers, with servers that answer it badly."""

import socket
import subprocess
import threading
import unittest

from environment import BIN_DIR


class Server:
    """Listens on a port of 127.0.0.1, and answers one connection with `pieces`. Without pieces it only closes it."""

    def __init__(self, *pieces):
        self.pieces = pieces
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self.listener.getsockname()[1]}/health"
        self.thread = threading.Thread(target=self.serve)

    def serve(self):
        try:
            with self.listener.accept()[0] as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.recv(4096)
                for piece in self.pieces:
                    connection.sendall(piece)
        except OSError:
            pass  # nobody has asked, or the probe has ended

    def __enter__(self):
        self.thread.start()
        return self.target

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)  # ends an accept that still waits
        self.thread.join()
        self.listener.close()


def probe(*targets):
    return subprocess.run([BIN_DIR / "taopd-probe", *targets], check=False, timeout=60).returncode


class Probe(unittest.TestCase):
    def test_answers(self):
        for code, pieces in ((0, [b"HTTP/1.1 200 OK\r\n\r\n"]),
                             (0, [b"HTTP", b"/1.0 ", b"200"]),
                             (1, [b"HTTP/1.1 503 Service Unavailable\r\n\r\n"]),
                             (1, [b"HTTP/2.0 200 OK\r\n\r\n"]),
                             (1, [])):
            with self.subTest(pieces=pieces), Server(*pieces) as target:
                self.assertEqual(probe(target), code)

    def test_an_answer_that_is_cut_off_counts_as_none(self):
        for cut in (b"H", b"HTTP/1.", b"HTTP/1.1", b"HTTP/1.1 20"):
            with self.subTest(cut=cut), Server(cut) as target, Server(b"HTTP/1.1 200 OK\r\n\r\n") as next_target:
                self.assertEqual(probe(target, next_target), 0)
