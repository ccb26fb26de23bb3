#!/usr/bin/env python3
"""Serves the console from console/src as it is on the disk, and passes everything else on to a running pageserver: to
work on the page without building the server again. `console/serve.py [--port 8000] [--server http://127.0.0.1:9898]`"""

import argparse
import http.client
import mimetypes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

SOURCES = Path(__file__).resolve().parent / "src"
# What concerns one connection, or is made anew here.
OWN = {"connection", "transfer-encoding", "content-length"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        path = urlsplit(self.path).path
        name = "index.html" if path == "/" else path.removeprefix("/console/")
        file = (SOURCES / name).resolve()
        if name != path and SOURCES in file.parents and file.is_file():
            body = file.read_bytes()
            kind = mimetypes.guess_type(file.name)[0] or "text/plain"
            return self.send(200, {"Content-Type": kind, "Cache-Control": "no-store"}, body)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server = urlsplit(self.server.behind)
        connection = http.client.HTTPConnection(server.hostname, server.port, timeout=300)
        try:
            # With the Host that was asked for: the server compares it with where the page is from.
            connection.request(self.command, self.path, body or None, dict(self.headers))
            got = connection.getresponse()
            headers = {name: value for name, value in got.getheaders() if name.lower() not in OWN}
            self.send(got.status, headers, got.read())
        finally:
            connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def send(self, status: int, headers: dict, body: bytes):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--server", default="http://127.0.0.1:9898", help="a running pageserver")
    args = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    server.behind = args.server
    print(f"the console is at http://127.0.0.1:{args.port}/")
    server.serve_forever()


if __name__ == "__main__":
    main()
