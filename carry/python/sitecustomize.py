"""Hands on the context of the request that a Python program is working on.

wopproxy puts this file on PYTHONPATH, so that Python runs it at start. It notes
the context headers of each inbound HTTP request, and adds them to the outbound
requests that are made while that request is worked on. It does nothing else,
needs nothing but Python 3.8 to 3.13, and prints nothing. Whatever is not as
expected switches the part concerned off.

What is handed on, and where to:

  traceparent, tracestate   to everyone, as tracing does; but the member wop=,
                            a word between host and proxy, only through it
  the others                in the clear and through the proxy, which judges
                            and removes them; never inside TLS, where a
                            stranger would read them

A header that the program sets itself stays. Beside another traceparent of its
own nothing of the trace is added, and nothing at all if it runs OpenTelemetry.

Work keeps the context across asyncio tasks, ThreadPoolExecutor, threads and
forked processes. A thread, task or process that was started in one request and
then takes its work from a queue, or waits to be woken, may be working for
another by then: it loses the context rather than keep a wrong one. Child
programs are told nothing: one may outlive the request and serve others.

  WOPPROXY_CARRY=off       nothing at all is done
  WOPPROXY_CARRY_HEADERS   what is handed on, default
                           traceparent,tracestate,baggage,Run-Id,Run-Ancestry
  WOPPROXY_EGRESS          the proxy, default what HTTP_PROXY names
"""

import os
import sys
from _frozen_importlib_external import PathFinder, SourceFileLoader, SourcelessFileLoader
from _thread import get_ident
from _weakref import ref

try:
    from contextvars import ContextVar
except ImportError:  # older than 3.7: see _wanted
    ContextVar = lambda _, default: None

_DEFAULT_HEADERS = "traceparent,tracestate,baggage,Run-Id,Run-Ancestry"
_OF_THE_TRACE = ("traceparent", "tracestate", "baggage")
_LONGEST = 8192  # of a value; a longer one stays behind

# How a request travels, and so what may go with it.
_DIRECT, _TUNNELLED, _READ_BY_PROXY = 0, 1, 2


class _Carried:
    """The context headers of one inbound request, where they are known."""

    __slots__ = ("headers", "lent", "thread", "task")

    def __init__(self, headers, lent=False):
        self.headers = headers  # (name in lower case, name, value), ...
        self.lent = lent  # to a thread or process, which may turn to other work
        # Where it was noted: a task, or else a thread.
        self.thread = get_ident()
        task = _task()
        self.task = None if task is None else ref(task)

    def at_home(self):
        """Whether this is where the request itself is worked on."""
        if self.lent or self.thread is None:
            return False
        if self.task is not None:
            return self.task() is _task()
        return self.thread == get_ident()


def _task():
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio.current_task() if asyncio else None
    except (RuntimeError, AttributeError):
        return None  # no loop runs here, or asyncio is being imported


_current = ContextVar("wopproxy_carried", default=None)
_nothing = _Carried((), lent=True)  # a request of which no context is known
_off = set()  # parts that met something they did not expect
_notes = {}  # id of an object on its way through a stream -> (reference, _Carried)


def _quietly(part, f, *args):
    """Calls f, and never again if it fails."""
    if part in _off:
        return None
    try:
        return f(*args)
    except Exception:
        _off.add(part)
        return None


# ---- reading and adding headers


def _text(s):
    return s.decode("latin-1") if isinstance(s, bytes) else str(s)


def _read(pairs):
    """What is to be carried of the headers of an inbound request."""
    found = {}
    for name, value in pairs:
        name = _text(name).lower().replace("_", "-")
        if name in _names:
            found.setdefault(name, []).append(_text(value).strip())
    carried = []
    for name, values in found.items():
        if len(values) > 1 and name in ("traceparent", "run-id"):
            continue  # which one?
        value = ",".join(values)
        if name == "traceparent" and not (len(value) >= 55 and value[2] == value[35] == value[52] == "-"):
            continue
        if value and len(value) <= _LONGEST and value.isprintable() and value.isascii():
            carried.append((name, _names[name], value))
    carried.sort(key=lambda header: header[0] != "traceparent")  # the others depend on it
    if not carried or carried[0][0] != "traceparent":
        carried = [header for header in carried if header[0] not in _OF_THE_TRACE]
    return _Carried(tuple(carried))


def _environ(environ):
    """The same of a WSGI environment."""
    return _read((key[5:], environ[key]) for key in _keys if key in environ)


def _additions(present, way):
    """The headers to add to a request that has those present already."""
    carried = _current.get()
    if carried is None or not carried.headers:
        return ()
    present = {_text(name).strip().lower(): _text(value).strip() for name, value in present}
    theirs = present.get("traceparent")
    if theirs and "opentelemetry" in sys.modules:
        return ()
    add = []
    for name, spelled, value in carried.headers:
        if name == "traceparent":
            foreign = theirs is not None and theirs != value
        if name in present or name in _OF_THE_TRACE and foreign:
            continue
        if name == "tracestate" and way == _DIRECT:
            members = [member.strip() for member in value.split(",")]
            value = ",".join(member for member in members if not member.startswith("wop="))
        if value and (way == _READ_BY_PROXY or name in ("traceparent", "tracestate")):
            add.append((spelled, value))
    return add


def _way(host, port, tunnelled):
    if (_text(host or "").lower().strip("[]"), port) != _proxy:
        return _DIRECT
    return _TUNNELLED if tunnelled else _READ_BY_PROXY


def _egress():
    text = ""
    for name in ("WOPPROXY_EGRESS", "http_proxy", "HTTP_PROXY"):
        text = text or os.environ.get(name, "")
    scheme, _, rest = text.rpartition("://")
    address = rest.split("/")[0].rpartition("@")[2]
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        host, port = address, "443" if scheme == "https" else "80"
    return host.lower().strip("[]"), int(port)


# ---- replacing functions


def _replace(owner, name, make):
    """Puts make(original) in the place of a function of a class or module."""
    original = owner.__dict__[name]
    if not hasattr(original, "__code__"):
        raise TypeError("not a plain function")
    new = make(original)
    for attr in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(new, attr, getattr(original, attr))
    new.__dict__.update(original.__dict__)
    new.__wrapped__ = original
    setattr(owner, name, new)


def _leave(token):
    try:
        _current.reset(token)
    except ValueError:
        pass  # closed from elsewhere; the context ends with its task


def _scope(carried_of):
    """A replacement that runs a function in the context of the request that
    carried_of finds in its arguments. Nothing that was there before shows."""

    def make(original):
        part = "%s.%s" % (original.__module__, original.__qualname__)

        if original.__code__.co_flags & 0x80:  # async def

            async def scoped(*args, **kwargs):
                token = _current.set(_quietly(part, carried_of, *args) or _nothing)
                try:
                    return await original(*args, **kwargs)
                finally:
                    _leave(token)

        else:

            def scoped(*args, **kwargs):
                token = _current.set(_quietly(part, carried_of, *args) or _nothing)
                try:
                    return original(*args, **kwargs)
                finally:
                    _leave(token)

        return scoped

    return make


# ---- the way in


def _asgi(_, scope, *__):
    return _read(scope.get("headers") or ())


def _wsgi(_, environ, *__):
    return _environ(environ)


def _gunicorn(*args):
    """A worker's request is among its arguments, whose order depends on its kind."""
    for arg in args:
        if isinstance(getattr(arg, "headers", None), list):
            return _read(arg.headers)
    return None


# Module -> function that serves one request -> where its headers are. The WSGI
# frameworks are for servers that cannot be seen from Python.
_SERVERS = {
    "socketserver": {"BaseServer.finish_request": lambda *_: None},
    "gunicorn.workers.sync": {"SyncWorker.handle_request": _gunicorn},
    "gunicorn.workers.gthread": {"ThreadWorker.handle_request": _gunicorn},
    "gunicorn.workers.base_async": {"AsyncWorker.handle_request": _gunicorn},
    "waitress.task": {"WSGITask.execute": lambda task: _read(task.request.headers.items())},
    "cheroot.server": {"HTTPRequest.respond": lambda request: _read(request.inheaders.items())},
    "aiohttp.web_protocol": {
        "RequestHandler._handle_request": lambda _, request, *__: _read(request.headers.items())
    },
    "uvicorn.protocols.http.h11_impl": {
        "RequestResponseCycle.run_asgi": lambda cycle, *_: _read(cycle.scope["headers"])
    },
    "uvicorn.protocols.http.httptools_impl": {
        "RequestResponseCycle.run_asgi": lambda cycle, *_: _read(cycle.scope["headers"])
    },
    "hypercorn.utils": {"invoke_asgi": _asgi},
    "hypercorn.app_wrappers": {"ASGIWrapper.__call__": _asgi, "WSGIWrapper.__call__": _asgi},
    "django.core.handlers.wsgi": {"WSGIHandler.__call__": _wsgi},
    "flask.app": {"Flask.__call__": _wsgi},
}


def _serve(functions):
    def hook(module):
        for path, carried_of in functions.items():
            owner, _, name = path.rpartition(".")
            try:
                _replace(getattr(module, owner) if owner else module, name, _scope(carried_of))
            except Exception:
                pass  # this version has no such function

    return hook


def _asgi_framework(name):
    """For servers that cannot be seen from Python, too. A server may try how the
    application can be called, so that has to stay as it was."""

    def make(original):
        if original.__code__.co_varnames[: original.__code__.co_argcount] != ("self", "scope", "receive", "send"):
            raise TypeError("not an ASGI 3 application")
        scoped = _scope(_asgi)(original)

        async def call(self, scope, receive, send):
            return await scoped(self, scope, receive, send)

        return call

    return lambda module: _replace(getattr(module, name), "__call__", make)


def _http_server(module):
    """http.server, and what is built on it: wsgiref, Werkzeug, Django's own. The
    scope is that of the connection, opened by socketserver; each request on it
    brings its own context."""

    def make(original):
        def parse_request(self, *args, **kwargs):
            inside = _current.get() is not None
            if inside:
                _current.set(_nothing)
            parsed = original(self, *args, **kwargs)
            if inside and parsed:
                _current.set(_quietly("http.server", lambda: _read(self.headers.items())) or _nothing)
            return parsed

        return parse_request

    _replace(module.BaseHTTPRequestHandler, "parse_request", make)


def _wsgiref(module):
    """Servers of others that end in wsgiref, as CGI does."""

    def make(original):
        def run(self, application, *args, **kwargs):
            def noted(environ, start_response):
                _current.set(_quietly("wsgiref", _environ, environ) or _nothing)
                return application(environ, start_response)

            token = _current.set(_current.get())
            try:
                return original(self, noted, *args, **kwargs)
            finally:
                _leave(token)

        return run

    _replace(module.BaseHandler, "run", make)


# ---- the way out


def _http_client(module):
    """http.client, and what is built on it: urllib, requests, urllib3."""
    putheader = module.HTTPConnection.putheader

    def add(self):
        if self._HTTPConnection__state != module._CS_REQ_STARTED or _current.get() is None:
            return
        request, headers = self._buffer[0], self._buffer[1:]
        if request.startswith(b"CONNECT "):
            return
        present = [line.partition(b":")[::2] for line in headers]
        for name, value in _additions(present, _way(self.host, self.port, self._tunnel_host)):
            putheader(self, name, value)

    def make(original):
        def endheaders(self, *args, **kwargs):
            _quietly("http.client", add, self)
            return original(self, *args, **kwargs)

        return endheaders

    _replace(module.HTTPConnection, "endheaders", make)


def _httpcore(pool, method):
    """httpcore, under httpx. Requests belong to the caller, so a copy is sent."""

    def told(self, request):
        proxy = getattr(self, "_proxy_url", None) or getattr(getattr(self, "_proxy", None), "url", None)
        url = proxy or request.url  # the latter for a base path at the proxy's own address
        way = _way(url.host, url.port, request.url.scheme == b"https")
        add = _additions(request.headers, way)
        if not add:
            return request
        copy = object.__new__(type(request))
        copy.__dict__.update(request.__dict__)
        copy.headers = list(request.headers) + [(n.encode("ascii"), v.encode("ascii")) for n, v in add]
        return copy

    def make(original):
        if original.__code__.co_flags & 0x80:

            async def handle(self, request, *args, **kwargs):
                told_request = _quietly("httpcore", told, self, request) or request
                return await original(self, told_request, *args, **kwargs)

        else:

            def handle(self, request, *args, **kwargs):
                told_request = _quietly("httpcore", told, self, request) or request
                return original(self, told_request, *args, **kwargs)

        return handle

    return lambda module: _replace(getattr(module, pool), method, make)


def _aiohttp_client(module):
    def add(self):
        if self.method == "CONNECT":
            return
        url = self.proxy or self.url
        way = _way(url.host, url.port, self.url.scheme in ("https", "wss"))
        for name, value in _additions(self.headers.items(), way):
            self.headers[name] = value

    def make(original):
        async def send(self, *args, **kwargs):
            _quietly("aiohttp", add, self)
            return await original(self, *args, **kwargs)

        return send

    _replace(module.ClientRequest, "send", make)


# ---- from thread to thread


def _executor(module):
    """Work for a pool runs in the context in which it was submitted. The pool's
    threads are started outside of any."""

    def carrying(carried, fn):
        def work(*args, **kwargs):
            mine = _Carried(carried.headers)
            mine.thread = mine.task = None  # a pool's thread is nobody's home
            token = _current.set(mine)
            try:
                return fn(*args, **kwargs)
            finally:
                _leave(token)

        return work

    def make(original):
        def submit(*args, **kwargs):  # any keyword may be the work's own
            carried = _current.get()
            if carried is None or len(args) < 2 or not callable(args[1]):
                return original(*args, **kwargs)
            token = _current.set(None)
            try:
                return original(args[0], carrying(carried, args[1]), *args[2:], **kwargs)
            finally:
                _leave(token)

        return submit

    _replace(module.ThreadPoolExecutor, "submit", make)


def _threads(module):
    """A thread is lent the context that it is started in: see _turn."""

    def start(original):
        def start(self, *args, **kwargs):
            carried = _current.get()
            if carried is None:
                return original(self, *args, **kwargs)
            self.__dict__["_wopproxy_carried"] = carried
            token = _current.set(None)  # starting waits, and waiting ends a loan
            try:
                return original(self, *args, **kwargs)
            finally:
                _leave(token)

        return start

    def begin(original):
        def _bootstrap_inner(self, *args, **kwargs):
            carried = self.__dict__.pop("_wopproxy_carried", None)
            if carried is not None:
                _current.set(_Carried(carried.headers, lent=True))
            return original(self, *args, **kwargs)

        return _bootstrap_inner

    _replace(module.Thread, "_bootstrap_inner", begin)
    _replace(module.Thread, "start", start)
    _replace(module.Condition, "wait", _turn)
    _replace(module.Condition, "wait_for", _turn)


def _forked():
    carried = _current.get()
    if carried is not None:
        _current.set(_Carried(carried.headers, lent=True))


def _turn(original, may_be_anothers=lambda carried: carried.lent):
    """A replacement for what hands work to a thread or process: from there on, a
    lent context may be the wrong one."""

    def turn(*args, **kwargs):
        try:
            return original(*args, **kwargs)
        finally:
            carried = _current.get()
            if carried is not None and may_be_anothers(carried):
                _current.set(None)

    return turn


def _queues(module):
    """What is taken from a queue may be another request's, wherever it is not
    taken by the one that is worked on: a pool may run a worker for good."""

    def abroad(carried):
        return not carried.at_home()

    def make(original):
        turning = _turn(original, abroad)

        def get(self, *args, **kwargs):
            # Last in, first out is how spare connections are kept, not work.
            lifo = any(c.__name__ == "LifoQueue" for c in type(self).__mro__)
            return (original if lifo else turning)(self, *args, **kwargs)

        return get

    class SimpleQueue(module.SimpleQueue):
        __slots__ = ()

        get = _turn(module.SimpleQueue.get, abroad)
        get_nowait = _turn(module.SimpleQueue.get_nowait, abroad)

    SimpleQueue.__module__, SimpleQueue.__qualname__ = module.SimpleQueue.__module__, "SimpleQueue"
    _replace(module.Queue, "get", make)
    module.SimpleQueue = SimpleQueue


def _connections(module):
    for name in ("recv", "recv_bytes"):
        _replace(module._ConnectionBase, name, _turn)


# ---- from task to task


def _asyncio_queues(module):
    """A task that a request has started inherits its context. What it takes from
    a queue may be another's."""

    def make(original):
        def get_nowait(self, *args, **kwargs):
            try:
                return original(self, *args, **kwargs)
            finally:
                carried = _current.get()
                if carried is not None and not carried.at_home() and not isinstance(self, module.LifoQueue):
                    _current.set(None)

        return get_nowait

    _replace(module.Queue, "get_nowait", make)  # which get ends in


def _streams(module):
    """What goes through a stream of anyio takes the context of its sender along:
    the MCP SDK hands its messages from task to task in this way."""

    def note(item):
        carried, key = _current.get(), id(item)
        noted = _notes.get(key)
        if noted is not None and noted[0]() is item:
            if noted[1] is not carried:
                _notes[key] = (noted[0], None)  # sent by two: whose is it?
        elif carried is not None:
            try:
                _notes[key] = (ref(item, lambda _: _notes.pop(key, None)), carried)
            except TypeError:
                pass  # a plain value cannot be followed

    def noted(item):
        reference, carried = _notes.pop(id(item), (None, None))
        return carried if reference is not None and reference() is item else None

    def send(original):
        async def send(self, item, *args, **kwargs):
            _quietly("streams", note, item)
            return await original(self, item, *args, **kwargs)

        return send

    def send_nowait(original):
        def send_nowait(self, item, *args, **kwargs):
            _quietly("streams", note, item)
            return original(self, item, *args, **kwargs)

        return send_nowait

    def receive(original):
        async def receive(self, *args, **kwargs):
            item = await original(self, *args, **kwargs)
            carried = _quietly("streams", noted, item)
            mine = _current.get()
            if mine is None or not mine.at_home():
                _current.set(carried)
            return item

        return receive

    _replace(module.MemoryObjectReceiveStream, "receive", receive)
    _replace(module.MemoryObjectSendStream, "send_nowait", send_nowait)
    _replace(module.MemoryObjectSendStream, "send", send)


# ---- at start


_HOOKS = {module: _serve(functions) for module, functions in _SERVERS.items()}
_HOOKS.update({
    "starlette.applications": _asgi_framework("Starlette"),
    "quart.app": _asgi_framework("Quart"),
    "django.core.handlers.asgi": _asgi_framework("ASGIHandler"),
    "http.server": _http_server,
    "wsgiref.handlers": _wsgiref,
    "http.client": _http_client,
    "httpcore._sync.connection_pool": _httpcore("ConnectionPool", "handle_request"),
    "httpcore._async.connection_pool": _httpcore("AsyncConnectionPool", "handle_async_request"),
    "aiohttp.client_reqrep": _aiohttp_client,
    "concurrent.futures.thread": _executor,
    "threading": _threads,
    "queue": _queues,
    "multiprocessing.connection": _connections,
    "asyncio.queues": _asyncio_queues,
    "anyio.streams.memory": _streams,
})


class _Finder:
    """Calls the hooks of modules when they have been imported."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in _HOOKS:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is cls else getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                _quietly(name, cls.arm, spec)
                return spec
        return None

    @staticmethod
    def arm(spec):
        loader = spec.loader
        if type(loader) not in (SourceFileLoader, SourcelessFileLoader):
            return  # one that may serve other modules, too
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            execute(module)
            _quietly(spec.name, _HOOKS[spec.name], module)

        loader.exec_module = exec_module


def _wanted():
    if os.environ.get("WOPPROXY_CARRY", "").lower() in ("off", "0", "false", "no"):
        return False
    if "_wopproxy_carry" in sys.modules or not (3, 8) <= sys.version_info < (3, 14):
        return False
    instrumented = os.path.join("opentelemetry", "instrumentation", "auto_instrumentation")
    return not any(str(p).rstrip(os.sep).endswith(instrumented) for p in sys.path)


def _start():
    global _names, _keys, _proxy
    if not _wanted():
        return
    listed = os.environ.get("WOPPROXY_CARRY_HEADERS") or _DEFAULT_HEADERS
    _names = {name.strip().lower(): name.strip() for name in listed.split(",") if name.strip()}
    _keys = ["HTTP_" + name.upper().replace("-", "_") for name in _names]
    _proxy = _egress()
    sys.modules["_wopproxy_carry"] = sys.modules[__name__]
    sys.meta_path.insert(0, _Finder)
    for name in _HOOKS:
        if name in sys.modules:
            _quietly(name, _HOOKS[name], sys.modules[name])
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)


def _hidden():
    """Where the sitecustomize is that this one hides, further down the path."""
    ours, passed = os.path.dirname(os.path.realpath(__file__)), False
    for entry in sys.path:
        if os.path.realpath(entry) == ours:
            passed = True
            continue
        spec = PathFinder.find_spec("sitecustomize", [entry]) if passed else None
        if spec is not None and spec.loader is not None:
            return spec
    return None


def _chain(spec):
    """Runs it in our place. What it raises is its own affair, and Python's."""
    module = type(sys)("sitecustomize")
    module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
    if spec.has_location:
        module.__file__, module.__cached__ = spec.origin, spec.cached
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_quietly("start", _start)
if __name__ == "sitecustomize":
    _spec = _quietly("chain", _hidden)
    if _spec is not None:
        _chain(_spec)
