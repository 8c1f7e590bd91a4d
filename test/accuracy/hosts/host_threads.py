"""An A2A agent as one finds them: http.server with a thread for each request.

It needs nothing but the standard library, and has one pool of connections and
one of threads for the calls of all runs. COOPERATION says what it hands on;
where that is a process for each run, the server forks for each request.

With a plan as its argument it makes the calls of that plan and ends.
"""

import base64
import concurrent.futures
import http.client
import http.server
import json
import os
import queue
import secrets
import signal
import socketserver
import sys
import time
import urllib.parse
import uuid

COOPERATION = os.environ["COOPERATION"]
TOOLS = os.environ["TOOLS"]
PROXY = urllib.parse.urlsplit(os.environ["HTTP_PROXY"]).netloc

connections = queue.LifoQueue()
for _ in range(4):
    connections.put(None)  # opened when it is first taken


def hand_on(incoming, message):
    """Return what a call says of the run that makes it.

    That is headers, members of its arguments, and the URL to ask the proxy for.
    """
    run = incoming.get("Run-Id")
    if COOPERATION == "ids":
        return {}, {"message": message["messageId"], "context": message["contextId"]}, TOOLS
    if COOPERATION == "opentelemetry":
        version, trace, _, flags = incoming["traceparent"].split("-")
        own = "-".join([version, trace, secrets.token_hex(8), flags])
        return {"traceparent": own, "tracestate": incoming["tracestate"]}, {}, TOOLS
    if COOPERATION == "traceparent":
        return {"traceparent": incoming["traceparent"]}, {}, TOOLS
    if COOPERATION == "run-id":
        return {"Run-Id": run}, {}, TOOLS
    if COOPERATION == "credential":
        user = f"{run}:{os.environ['SECRET']}".encode()
        return {"Proxy-Authorization": "Basic " + base64.b64encode(user).decode()}, {}, TOOLS
    if COOPERATION == "base-path":
        return {}, {}, f"/_run/{urllib.parse.quote(run, safe='')}/{TOOLS}"
    return {}, {}, TOOLS


def rpc(plan, mentions):
    """Return the message of one call."""
    return json.dumps({
        "jsonrpc": "2.0", "id": str(uuid.uuid4()), "method": "tools/call",
        "params": {"name": "note", "arguments": {"marker": plan["marker"], **mentions}},
    })


def step(ms, plan, headers, mentions, url):
    """Think, and make one call of a run."""
    time.sleep(ms / 1000)
    connection = connections.get() or http.client.HTTPConnection(PROXY)
    try:
        connection.request("POST", url, rpc(plan, mentions), {
            "Host": urllib.parse.urlsplit(TOOLS).netloc, "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream", **headers,
        })
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}")
    finally:
        connections.put(connection)


def work(plan, *on):
    """Make the calls of a run."""
    if plan["together"]:
        for done in [threads.submit(step, ms, plan, *on) for ms in plan["think"]]:
            done.result()
        return
    for ms in plan["think"]:
        step(ms, plan, *on)


class Handler(http.server.BaseHTTPRequestHandler):
    # A process for each run serves no second one.
    protocol_version = "HTTP/1.0" if COOPERATION == "process" else "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = request["params"]["message"]
        work(json.loads(message["parts"][0]["text"]), *hand_on(self.headers, message))
        answer = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {
            "kind": "task", "id": str(uuid.uuid4()), "contextId": message["contextId"],
            "status": {"state": "completed"},
        }}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Threads(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Processes(socketserver.ForkingMixIn, http.server.HTTPServer):
    max_children = 256
    request_queue_size = 128


if __name__ == "__main__":
    threads = concurrent.futures.ThreadPoolExecutor(64)
    if len(sys.argv) > 1:
        work(json.loads(sys.argv[1]), {}, {}, TOOLS)
        sys.exit()
    kind = Processes if COOPERATION == "process" else Threads
    server = kind(("127.0.0.1", int(os.environ["PORT"])), Handler)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("ready", flush=True)
    server.serve_forever()
