"""A host for the test of the Python carry shim: it answers on a server of some
kind, and while it works on a request it calls out with some client, from some
thread or task.

    host.py SERVER

prints the port that it listens on. A request names the rest: /CLIENT/VIA?CASE.
The call that it makes bears the case in X-Case, so that whoever receives it can
tell what it belongs to. Nothing here hands on any context.
"""

import asyncio
import collections
import http.client
import os
import queue
import random
import socket
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

PROXY = os.environ["HTTP_PROXY"]
TARGET = "http://tools.test/call"
SMALL_POOL = ThreadPoolExecutor(3)  # fewer threads than requests: they take turns


# ---- clients, each of which makes one call for a case


def with_urllib(case):
    request = urllib.request.Request(TARGET, headers={"X-Case": case})
    urllib.request.urlopen(request).read()


def with_http_client(case):
    """Not through the proxy: http.client knows nothing of it."""
    connection = http.client.HTTPConnection(os.environ["DIRECT"])
    connection.request("GET", "/direct", headers={"X-Case": case})
    connection.getresponse().read()
    connection.close()


def with_base_path(case):
    connection = http.client.HTTPConnection(PROXY.partition("://")[2])
    connection.request("GET", "/_run/any/" + TARGET, headers={"X-Case": case})
    connection.getresponse().read()
    connection.close()


def with_tunnel(case):
    """As https does it, but in the clear, so that the other end can be seen."""
    connection = http.client.HTTPConnection(PROXY.partition("://")[2])
    connection.set_tunnel("tools.test", 80)
    connection.request("GET", "/tunnelled", headers={"X-Case": case})
    connection.getresponse().read()
    connection.close()


def with_own_headers(case):
    """A program that speaks of the trace itself."""
    headers = {"X-Case": case, "TraceParent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", "RUN-ID": "own"}
    urllib.request.urlopen(urllib.request.Request(TARGET + "/own", headers=headers)).read()


def with_requests(case):
    import requests

    requests.get(TARGET, headers={"X-Case": case}).raise_for_status()


_sessions = {}


def shared(name, make):
    """One client for all requests, made by whichever comes first."""
    if name not in _sessions:
        _sessions[name] = make()
    return _sessions[name]


def with_session(case):
    import requests

    shared("requests", requests.Session).get(TARGET, headers={"X-Case": case}).raise_for_status()


def with_httpx(case):
    import httpx

    shared("httpx", httpx.Client).get(TARGET, headers={"X-Case": case}).raise_for_status()


async def with_httpx_async(case):
    import httpx

    client = shared("httpx async", httpx.AsyncClient)
    (await client.get(TARGET, headers={"X-Case": case}, timeout=60)).raise_for_status()


async def with_aiohttp(case):
    import aiohttp

    session = shared("aiohttp", lambda: aiohttp.ClientSession(trust_env=True))
    async with session.get(TARGET, headers={"X-Case": case}) as response:
        await response.read()


# ---- where a call is made from


def inline(call, case):
    call(case)


def pool(call, case):
    """From a pool that the first request has made and started the threads of."""
    shared("pool", lambda: ThreadPoolExecutor(5)).submit(call, case).result()
    list(shared("pool", None).map(call, [case]))


def small_pool(call, case):
    SMALL_POOL.submit(call, case).result()


def thread(call, case):
    t = threading.Thread(target=call, args=(case,))
    t.start()
    t.join()


class OwnThread(threading.Thread):
    def __init__(self, call, case):
        super().__init__()
        self.call, self.case = call, case

    def run(self):
        inner = threading.Thread(target=self.call, args=(self.case,))
        inner.start()
        inner.join()
        self.call(self.case)


def own_thread(call, case):
    t = OwnThread(call, case)
    t.start()
    t.join()


def left_behind(call, case):
    """A call that comes after the request has been answered."""

    def later():
        time.sleep(0.2)
        call(case)

    threading.Thread(target=later).start()


def forked(call, case):
    pid = os.fork()
    if pid == 0:
        try:
            call(case)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def fresh_loop(call, case):
    async def main():
        await asyncio.gather(asyncio.get_running_loop().run_in_executor(None, call, case))

    asyncio.run(main())


class Workers:
    """A home-made pool, whose thread the first request starts: what it carries
    of that request must not stick to what it does for the others."""

    def __init__(self, take, put, start=lambda work: threading.Thread(target=work, daemon=True).start()):
        self.take, self.put = take, put
        start(self.work)

    def work(self):
        while True:
            call, case, done = self.take()
            try:
                call(case)
            finally:
                done.set()


def run_by(name, make):
    def via(call, case):
        done = threading.Event()
        shared(name, make).put((call, case, done))
        done.wait()

    return via


def queue_workers(kind, *start):
    def make():
        q = kind()
        return Workers(q.get, q.put, *start)

    return make


def from_pool(work):
    """Starts a worker that stays in a thread of somebody's pool."""
    ThreadPoolExecutor(1).submit(work)


def deque_workers():
    condition, items = threading.Condition(), collections.deque()

    def take():
        with condition:
            condition.wait_for(lambda: items)
            return items.popleft()

    def put(item):
        with condition:
            items.append(item)
            condition.notify()

    return Workers(take, put)


VIA = {
    f.__name__: f for f in (inline, pool, small_pool, thread, own_thread, left_behind, forked, fresh_loop)
}
VIA["queue"] = run_by("queue", queue_workers(queue.Queue))
VIA["simple-queue"] = run_by("simple queue", queue_workers(queue.SimpleQueue))
VIA["pooled-queue"] = run_by("pooled queue", queue_workers(queue.Queue, from_pool))
VIA["pooled-simple-queue"] = run_by("pooled simple queue", queue_workers(queue.SimpleQueue, from_pool))
VIA["deque"] = run_by("deque", deque_workers)


async def task(call, case):
    await asyncio.gather(asyncio.create_task(call(case)), asyncio.create_task(call(case)))


async def task_left_behind(call, case):
    async def later():
        await asyncio.sleep(0.2)
        await call(case)

    shared("left behind", set).add(asyncio.create_task(later()))


async def shared_task(call, case):
    """A task that the first request has started, and that works for all."""

    def make():
        q = asyncio.Queue()

        async def work():
            while True:
                case, done = await q.get()
                await call(case)
                done.set()

        q.task = asyncio.create_task(work())
        return q

    done = asyncio.Event()
    await shared("shared task", make).put((case, done))
    await done.wait()


class Message:
    def __init__(self, case):
        self.case, self.done = case, asyncio.Event()


async def stream(call, case):
    """The same over a stream of anyio, which says whose each message is."""
    import anyio

    def make():
        send, receive = anyio.create_memory_object_stream(10)

        async def work():
            async for message in receive:
                asyncio.create_task(handle(message))

        async def handle(message):
            await call(message.case)
            message.done.set()

        send.task = asyncio.create_task(work())
        return send

    message = Message(case)
    await shared("stream", make).send(message)
    await message.done.wait()


async def in_thread(call, case):
    """call blocks."""
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, call, case)
    if hasattr(asyncio, "to_thread"):
        await asyncio.to_thread(call, case)
    else:
        await loop.run_in_executor(SMALL_POOL, call, case)


ASYNC_VIA = {f.__name__: f for f in (task, task_left_behind, shared_task, stream, in_thread)}


async def awork(path, case):
    client, via = path.strip("/").split("/")
    call = globals()["with_" + client]
    await asyncio.sleep(random.random() / 50)
    if via == "inline":
        await call(case)
    else:
        await ASYNC_VIA[via](call, case)


def work(path, case):
    client, via = path.strip("/").split("/")
    time.sleep(random.random() / 50)
    VIA[via](globals()["with_" + client], case)


# ---- servers


def ready(port):
    print(port, flush=True)


def free_socket():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
    s.listen(128)
    return s


def wsgi_app(environ, start_response):
    """Calls while the answer is streamed, too, which is later for a server."""
    work(environ["PATH_INFO"], environ["QUERY_STRING"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"ok"
    work("/urllib/inline", environ["QUERY_STRING"])


async def asgi_app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await awork(scope["path"], scope["query_string"].decode())
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def http_server(threaded):
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path, _, case = self.path.partition("?")
            work(path, case)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")
            self.server.between = not threaded

        def log_message(self, *args):
            pass

    kind = http.server.ThreadingHTTPServer if threaded else http.server.HTTPServer

    class Server(kind):
        request_queue_size = 128

        def service_actions(self):
            """Between two requests there is none to carry."""
            if self.between:
                with_urllib("none")
                SMALL_POOL.submit(with_urllib, "none").result()
                self.between = False

        between = False

    if not threaded:  # or one client that stays would be all that it serves
        Handler.protocol_version = "HTTP/1.0"
    server = Server(("127.0.0.1", 0), Handler)
    ready(server.server_address[1])
    server.serve_forever()


def wsgiref_server():
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

    class Quiet(WSGIRequestHandler):
        def log_message(self, *args):
            pass

    WSGIServer.request_queue_size = 128
    server = make_server("127.0.0.1", 0, wsgi_app, handler_class=Quiet)
    ready(server.server_port)
    server.serve_forever()


def flask_server():
    import logging

    import flask
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = flask.Flask("host")

    @app.route("/<client>/<via>")
    def call(client, via):
        work("/%s/%s" % (client, via), flask.request.query_string.decode())
        return "ok"

    server = make_server("127.0.0.1", 0, app, threaded=True)
    ready(server.server_port)
    server.serve_forever()


def gunicorn_server(kind):
    from gunicorn.app.base import BaseApplication

    class App(BaseApplication):
        def load_config(self):
            self.cfg.set("bind", "127.0.0.1:0")
            self.cfg.set("worker_class", kind)
            self.cfg.set("workers", 4 if kind == "sync" else 1)
            self.cfg.set("threads", 8)
            self.cfg.set("loglevel", "critical")
            self.cfg.set("when_ready", lambda server: ready(server.LISTENERS[0].sock.getsockname()[1]))

        def load(self):
            return wsgi_app

    App().run()


def waitress_server():
    import waitress

    server = waitress.create_server(wsgi_app, host="127.0.0.1", port=0, threads=8)
    ready(server.effective_port)
    server.run()


def cheroot_server():
    from cheroot.wsgi import Server

    server = Server(("127.0.0.1", 0), wsgi_app, numthreads=8, request_queue_size=128)
    server.prepare()
    ready(server.bind_addr[1])
    server.serve()


def aiohttp_server():
    from aiohttp import web

    async def handle(request):
        await awork(request.path, request.query_string)
        return web.Response(text="ok")

    async def main():
        app = web.Application()
        app.router.add_get("/{client}/{via}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        s = free_socket()
        await web.SockSite(runner, s).start()
        ready(s.getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


def uvicorn_server(app):
    import uvicorn

    s = free_socket()
    ready(s.getsockname()[1])
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[s])


def starlette_app():
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def handle(request):
        await awork(request.url.path, request.url.query)
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/{client}/{via}", handle)])


def hypercorn_server():
    import hypercorn.asyncio
    from hypercorn.config import Config

    s = free_socket()
    config = Config()
    config.bind = ["fd://%d" % os.dup(s.fileno())]
    config.loglevel = "CRITICAL"
    ready(s.getsockname()[1])
    asyncio.run(hypercorn.asyncio.serve(asgi_app, config, shutdown_trigger=lambda: asyncio.Event().wait()))


{
    "threads": lambda: http_server(True),
    "single": lambda: http_server(False),
    "wsgiref": wsgiref_server,
    "flask": flask_server,
    "gunicorn-sync": lambda: gunicorn_server("sync"),
    "gunicorn-gthread": lambda: gunicorn_server("gthread"),
    "waitress": waitress_server,
    "cheroot": cheroot_server,
    "aiohttp": aiohttp_server,
    "uvicorn": lambda: uvicorn_server(asgi_app),
    "starlette": lambda: uvicorn_server(starlette_app()),
    "hypercorn": hypercorn_server,
}[sys.argv[1]]()
