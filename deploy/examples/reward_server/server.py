"""A reward server in plain Python: 1 for a response whose text after the last "#" is the answer,
less 0.001 per character.

Usage: server.py [PORT]     listens on 127.0.0.1 (port 0: any free one) and prints the URL for reward.url

The protocol (docs/rewards.md): POST {"samples": [{"id", "prompt", "response", "answer", "source"}, ...]}; the reply is
{"rewards": [{"id", "reward"}, ...]}. Replace `judge` by your own.
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def judge(sample):
    found = sample["response"].rpartition("#")[2].strip()
    return float(found == sample["answer"]) - 0.001 * len(sample["response"])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps the connection for the next request

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rewards = [{"id": sample["id"], "reward": judge(sample)} for sample in request["samples"]]
        body = json.dumps({"rewards": rewards}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 9000), Handler)
    print(f"http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
