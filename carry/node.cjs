// Part of wopproxy: hands the context of an inbound request on to the outbound
// requests that are made on its behalf, so that the proxy beside this process can
// tell whose they are. Loaded by NODE_OPTIONS="--require node.cjs".
//
// What it hands on, and where to:
//
//   traceparent, tracestate   to everyone, as tracing does; but the member wop=,
//                             a word between host and proxy, only through it
//   the others                in the clear and through the proxy, which judges
//                             and removes them; never inside TLS, where a
//                             stranger would read them
//
// A header that the application sets stays as it is. Where OpenTelemetry
// propagates context, or anything is not as expected, nothing is done. It never
// prints, and no fault of its own reaches the application.
//
//   WOPPROXY_CARRY=off       nothing at all is done
//   WOPPROXY_CARRY_HEADERS   what is handed on, default
//                            traceparent,tracestate,baggage,Run-Id,Run-Ancestry
//   WOPPROXY_EGRESS          the proxy, default what HTTP_PROXY names
'use strict';

const installed = Symbol.for('dev.wopproxy.carry');

function install() {
  const env = process.env;
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (env.WOPPROXY_CARRY === 'off' || globalThis[installed] || major < 18 || (major === 18 && minor < 19)) return;
  if (/opentelemetry/i.test(`${env.NODE_OPTIONS} ${process.execArgv.join(' ')}`)) return;
  Object.defineProperty(globalThis, installed, { value: true });

  const Module = require('node:module');
  const { AsyncLocalStorage } = require('node:async_hooks');
  const current = new AsyncLocalStorage(); // the context of the request being served

  // --- what a request came with

  const names = (env.WOPPROXY_CARRY_HEADERS || 'traceparent,tracestate,baggage,Run-Id,Run-Ancestry')
    .split(',').map((name) => name.trim()).filter((name) => /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(name));
  const carries = (name) => names.some((n) => n.toLowerCase() === name);
  const confidential = names.filter((name) => !['traceparent', 'tracestate'].includes(name.toLowerCase()));

  // contextOf returns what there is to hand on, or undefined. It belongs to the
  // server's side alone: a request without context must not inherit another's.
  function contextOf(headers) {
    const one = (name) => (typeof headers[name] === 'string' ? headers[name] : undefined);
    const traceparent = one('traceparent');
    const found = { traceparent: undefined, tracestate: undefined, publicState: undefined, confidential: [] };
    if (carries('traceparent') && traceparent && /^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}/.test(traceparent)) {
      found.traceparent = traceparent;
      if (carries('tracestate')) {
        const members = (one('tracestate') || '').split(',').map((m) => m.trim()).filter(Boolean);
        found.tracestate = members.join(',');
        found.publicState = members.filter((m) => !m.startsWith('wop=')).join(',');
      }
    }
    for (const name of confidential) {
      const value = one(name.toLowerCase());
      if (value !== undefined) found.confidential.push([name, value]);
    }
    return found.traceparent || found.confidential.length > 0 ? found : undefined;
  }

  // otherwise reports whether somebody else propagates context here.
  function otherwise() {
    const otel = globalThis[Symbol.for('opentelemetry.js.api.1')];
    return Boolean(otel && (otel.trace || otel.propagation));
  }

  // addition returns the headers to add to a request that goes out now. own tells
  // the application's own value of a header, via whether the proxy will see the
  // request, and clear whether it can read it.
  function addition(context, own, via, clear) {
    const add = [];
    const theirs = own('traceparent');
    if (context.traceparent && (theirs === undefined || theirs === context.traceparent)) {
      if (theirs === undefined) add.push(['traceparent', context.traceparent]);
      const state = via ? context.tracestate : context.publicState;
      if (state && own('tracestate') === undefined) add.push(['tracestate', state]);
    }
    if (via && clear) {
      for (const [name, value] of context.confidential) {
        const key = name.toLowerCase();
        if (own(key) !== undefined || (key === 'baggage' && theirs !== undefined && theirs !== context.traceparent)) continue;
        add.push([name, value]);
      }
    }
    return add;
  }

  // --- where a request goes

  const address = (text) => {
    try {
      const url = new URL(text);
      return `${url.hostname}:${url.port || (url.protocol === 'https:' ? 443 : 80)}`;
    } catch {
      return undefined;
    }
  };
  const variable = (name) => env[name] || env[name.toUpperCase()];
  const egress = address(env.WOPPROXY_EGRESS || variable('http_proxy'));
  const exceptions = (variable('no_proxy') || '').split(/[\s,]+/).filter(Boolean);

  // byEnvironment reports whether a client that honours the proxy variables takes
  // wopproxy to the destination. In doubt it does not: then less is handed on.
  function byEnvironment(scheme, host, port) {
    if (!egress || address(variable(`${scheme}_proxy`)) !== egress) return false;
    host = host.replace(/^\[|\]$/g, '').toLowerCase();
    return !exceptions.some((entry) => {
      let [, name, only] = /^(.*?)(?::(\d+))?$/.exec(entry.toLowerCase());
      if (only && only !== String(port || (scheme === 'https' ? 443 : 80))) return false;
      name = name.replace(/^\*?\.?/, '');
      return name === '' || host === name || host.endsWith(`.${name}`) || name.includes('/') || name.includes(':') || name.includes('-');
    });
  }

  // --- tools

  // guarded runs a part of ours, whose faults end here.
  function guarded(part) {
    try {
      return part();
    } catch {
      return undefined;
    }
  }

  const here = () => guarded(() => current.getStore());

  // within runs work in a context, and in any case.
  function within(context, work) {
    let begun = false;
    try {
      return current.run(context, () => {
        begun = true;
        return work();
      });
    } catch (err) {
      if (begun) throw err; // the application's own
      return work();
    }
  }

  // replace puts make(original) in the place of object[name].
  function replace(object, name, make) {
    const original = object[name];
    if (typeof original !== 'function') return;
    const wrapper = make(original);
    for (const key of ['name', 'length']) Object.defineProperty(wrapper, key, { value: original[key], configurable: true });
    Object.defineProperty(object, name, { value: wrapper, writable: true, configurable: true, enumerable: Object.prototype.propertyIsEnumerable.call(object, name) });
  }

  // --- in: HTTP/1 and HTTP/2 servers

  // bind lets all listeners of an emitter run in the context of its request: a
  // body arrives in that of the connection, which several requests share.
  function bind(emitter, context) {
    guarded(() => replace(emitter, 'emit', (emit) => function (...args) {
      return here() === context ? emit.apply(this, args) : within(context, () => emit.apply(this, args));
    }));
  }

  // serve makes an emitter of requests hand each to its listeners in its context.
  const serve = (emit) => function (event, first, second, ...rest) {
    let headers;
    switch (event) {
      case 'request': case 'checkContinue': case 'checkExpectation': case 'upgrade':
        headers = guarded(() => first.headers);
        break;
      case 'stream':
        headers = second;
    }
    if (!headers) return emit.apply(this, arguments);
    const context = guarded(() => contextOf(headers));
    if (context) {
      bind(first, context);
      if (event !== 'upgrade' && event !== 'stream') bind(second, context);
    }
    return within(context, () => emit.call(this, event, first, second, ...rest));
  };

  const http = require('node:http');
  const https = require('node:https');
  const http2 = require('node:http2');
  replace(http.Server.prototype, 'emit', serve);
  replace(https.Server.prototype, 'emit', serve);
  for (const create of ['createServer', 'createSecureServer']) {
    replace(http2, create, (original) => function (...args) {
      const server = original.apply(this, args);
      guarded(() => replace(server, 'emit', serve));
      return server;
    });
  }

  // --- between requests: connections

  // A connection may serve one request after the other, in a pool of whoever has
  // opened it, so what is heard on it is not for the one that it was opened for.
  for (const [owner, name] of [[require('node:net').Socket.prototype, 'connect'], [require('node:tls'), 'connect']]) {
    replace(owner, name, (connect) => function (...args) {
      return within(undefined, () => connect.apply(this, args));
    });
  }

  // --- out: http and https

  // proxied tells of a request that was made and not yet sent whether wopproxy
  // will see it, and whether in the clear. args are those it was made with.
  function proxied(req, scheme, args) {
    const absolute = /^http:\/\//i.test(req.path);
    let port;
    for (const a of args) port = (typeof a === 'string' ? new URL(a).port : a && a.port) || port;
    port = Number(port || (req.agent && req.agent.defaultPort) || (scheme === 'https' ? 443 : 80));
    if (egress === `${req.host}:${port}`) return { via: true, clear: absolute || req.path.startsWith('/_run/http:/') };
    const { options, proxy } = req.agent || {};
    if (egress && proxy && address(proxy.href || proxy) === egress) return { via: true, clear: scheme === 'http' };
    if (options && options.proxyEnv) { // Node's own agents, where they heed the environment
      const via = byEnvironment(scheme, req.host, port);
      return { via, clear: via && absolute };
    }
    return { via: false, clear: false };
  }

  function handOn(req, scheme, args) {
    const context = here();
    if (!context || req.headersSent || req.method === 'CONNECT' || otherwise()) return;
    const { via, clear } = proxied(req, scheme, args);
    for (const [name, value] of addition(context, (name) => req.getHeader(name), via, clear)) req.setHeader(name, value);
  }

  for (const [scheme, module] of [['http', http], ['https', https]]) {
    replace(module, 'request', (original) => function (...args) {
      const req = original.apply(this, args);
      guarded(() => handOn(req, scheme, args));
      return req;
    });
    const { request } = module;
    replace(module, 'get', () => function (...args) { // which is this, and would not call ours
      const req = request.apply(this, args);
      req.end();
      return req;
    });
  }

  // --- out: HTTP/2

  // gRPC queues calls until a connection is up, and then starts them all in the
  // context of one: below it is served at a better place, or not at all.
  const isGrpc = (headers) => /^application\/grpc/.test(headers['content-type']);

  replace(http2, 'connect', (connect) => function (...args) {
    const session = connect.apply(this, args);
    guarded(() => replace(session, 'request', (request) => function (headers, ...rest) {
      const context = here();
      const headed = context && headers && !Array.isArray(headers) && guarded(() => {
        if (isGrpc(headers) || headers[':method'] === 'CONNECT' || otherwise()) return undefined;
        const own = (name) => headers[Object.keys(headers).find((key) => key.toLowerCase() === name)];
        return { ...headers, ...Object.fromEntries(addition(context, own, false, false)) };
      });
      return request.call(this, headed || headers, ...rest);
    }));
    return session;
  });

  // --- out: fetch and undici

  // flat returns headers, which undici takes in many forms, as name, value, ...
  function flat(headers) {
    if (!headers) return [];
    if (Array.isArray(headers)) return headers;
    return (typeof headers[Symbol.iterator] === 'function' ? [...headers] : Object.entries(headers)).flat();
  }

  // dispatched returns the options of a request with the headers added.
  function dispatched(dispatcher, options, context) {
    if (options.method === 'CONNECT' || otherwise()) return options;
    const headers = flat(options.headers);
    const own = (name) => headers[headers.findIndex((key, i) => i % 2 === 0 && String(key).toLowerCase() === name) + 1 || -1];
    let via = false;
    let clear = false;
    if (options.origin) {
      const { protocol, hostname, port } = new URL(options.origin);
      const scheme = protocol.slice(0, -1);
      if (address(options.origin) === egress) {
        via = true;
        clear = options.path.startsWith('/_run/http:/');
      } else {
        const kind = dispatcher.constructor.name;
        const settings = Object.getOwnPropertySymbols(dispatcher).find((s) => s.description === 'proxy agent options');
        via = kind === 'EnvHttpProxyAgent' ? byEnvironment(scheme, hostname, port)
          : kind === 'ProxyAgent' && egress !== undefined && address(dispatcher[settings].uri) === egress;
        clear = via && scheme === 'http';
      }
    }
    const add = addition(context, own, via, clear);
    return add.length === 0 ? options : { ...options, headers: [...headers, ...add.flat()] };
  }

  // watch takes over a dispatcher's class. A pool starts a request that waits in
  // the context of the one that made room, and a connection lives in that of the
  // request that opened it. So headers are added in the outermost dispatch, which
  // the caller calls, and what lies below runs without context.
  const watched = new WeakSet();
  function watch(dispatcher) {
    for (let at = dispatcher; at; at = Object.getPrototypeOf(at)) {
      if (!Object.hasOwn(at, 'dispatch')) continue;
      if (watched.has(at)) return;
      watched.add(at);
      replace(at, 'dispatch', (dispatch) => function (options, ...rest) {
        const context = here();
        if (!context) return dispatch.call(this, options, ...rest);
        const headed = guarded(() => dispatched(this, options, context)) || options;
        return within(undefined, () => dispatch.call(this, headed, ...rest));
      });
      return;
    }
  }

  const dispatchers = ['undici.globalDispatcher.1', 'undici.globalDispatcher.2'].map(Symbol.for);
  replace(globalThis, 'fetch', (fetch) => function (...args) {
    guarded(() => {
      void globalThis.Response; // loads the built-in undici, which is not there before
      for (const key of dispatchers) watch(globalThis[key]);
      watch(args[1] && args[1].dispatcher);
    });
    return fetch.apply(this, args);
  });

  // --- out: packages, as they are loaded

  function onUndici(undici) {
    for (const name of ['Agent', 'ProxyAgent', 'EnvHttpProxyAgent', 'RetryAgent']) watch(undici[name] && undici[name].prototype);
    watch(undici.getGlobalDispatcher()); // which may be the built-in's
  }

  function onGrpc({ Channel }) {
    if (watched.has(Channel)) return;
    watched.add(Channel);
    replace(Channel.prototype, 'createCall', (createCall) => function (...args) {
      const call = createCall.apply(this, args);
      const context = here();
      if (!context || guarded(otherwise)) return call;
      const via = guarded(() => {
        const [, host, port] = /([^/:]+|\[[^/]+\]):(\d+)$/.exec(this.getTarget());
        return egress === `${host}:${port}` || (!env.grpc_proxy && !env.no_grpc_proxy && byEnvironment('https', host, port));
      });
      guarded(() => replace(call, 'start', (start) => function (metadata, ...rest) {
        const headed = guarded(() => {
          const copy = metadata.clone(); // the application may use its own again
          for (const [name, value] of addition(context, (key) => metadata.get(key)[0], via, false)) copy.set(name, value);
          return copy;
        });
        return start.call(this, headed || metadata, ...rest);
      }));
      return call;
    });
  }

  const packages = [
    [/(^|[\\/]node_modules[\\/])undici([\\/]index\.js)?$/, onUndici],
    [/(^|[\\/]node_modules[\\/])@grpc[\\/]grpc-js([\\/]build[\\/]src[\\/]index\.js)?$/, onGrpc],
  ];
  replace(Module, '_load', (load) => function (request, ...rest) {
    const loaded = load.call(this, request, ...rest);
    for (const [name, take] of packages) if (name.test(request)) guarded(() => take(loaded));
    return loaded;
  });

  Module.syncBuiltinESMExports();
}

try {
  install();
} catch {
  // An application that runs without its context is better than none that runs.
}
