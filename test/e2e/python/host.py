"""A host that knows nothing of wopproxy: an MCP server whose tool calls another.
It answers with the id of the run that it was given, if any.

usage: host.py URL of the other server; it listens on $PORT
"""

import http.server
import json
import os
import random
import sys
import time
import urllib.request

HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}


class Host(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(random.random() / 200)  # runs overlap in every order
        params = {"name": "echo", "arguments": asked["params"]["arguments"]}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        urllib.request.urlopen(urllib.request.Request(sys.argv[1], json.dumps(call, separators=(",", ":")).encode(), HEADERS)).read()
        result = {"content": [{"type": "text", "text": self.headers.get("Run-Id", "")}]}
        answer = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


Server(("localhost", int(os.environ["PORT"])), Host).serve_forever()
