// Makes a runtime that is not as the shim expects it. WORLD says how.
'use strict';
const http = require('node:http');
const prior = {};
prior.registered = () => { globalThis[Symbol.for('opentelemetry.js.api.1')] = { version: '1.9.0', trace: {}, propagation: {} }; };
prior.metrics = () => { globalThis[Symbol.for('opentelemetry.js.api.1')] = { version: '1.9.0', metrics: {} }; };
prior.frozen = () => { Object.freeze(http); };
prior.frozenServer = () => { Object.freeze(http.Server.prototype); };
prior.noHooks = () => {
  const Module = require('node:module');
  const load = Module._load;
  Module._load = (request, parent, main) => (request === 'node:async_hooks' && /node\.cjs$/.test(parent.filename) ? {} : load(request, parent, main));
};
prior.old = () => { Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '16.20.0' } }); };
prior.throwing = () => { require('node:async_hooks').AsyncLocalStorage.prototype.getStore = () => { throw new Error('broken'); }; };
prior[process.env.WORLD]();
