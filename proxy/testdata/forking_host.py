# A host that forks for each connection and tells its child nothing of the run.
# It calls out twice before it answers, and says in the call whose it is.
import http.server
import json
import socketserver
import sys
import urllib.request

proxy, target = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy}))
        for _ in range(2):
            arguments = {"truth": self.headers["Run-Id"]}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": arguments}}
            request = urllib.request.Request(target, json.dumps(call).encode(), {"Content-Type": "application/json"})
            opener.open(request).read()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


class Server(socketserver.ForkingMixIn, http.server.HTTPServer):
    pass


server = Server(("127.0.0.1", 0), Handler)
print("127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
