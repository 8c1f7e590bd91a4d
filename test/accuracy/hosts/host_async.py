"""An A2A agent as one finds them: asyncio, with aiohttp for both its sides.

It has one pool of connections for the calls of all runs. COOPERATION says what
it hands on; where that is a process for each run, that process is the other
Python host, which is told the trace of its run in its environment.
"""

import asyncio
import json
import os
import pathlib
import signal
import sys
import urllib.parse
import uuid

import aiohttp
import yarl
from aiohttp import web

from host_threads import COOPERATION, TOOLS, hand_on, rpc

PROXY = os.environ["HTTP_PROXY"]


async def step(session, ms, plan, headers, mentions, url):
    """Think, and make one call of a run."""
    await asyncio.sleep(ms / 1000)
    proxy = PROXY
    if url.startswith("/"):
        url, proxy = PROXY.rstrip("/") + url, None
        headers = {"Host": urllib.parse.urlsplit(TOOLS).netloc, **headers}
    async with session.post(yarl.URL(url, encoded=True), proxy=proxy, data=rpc(plan, mentions), headers={
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers,
    }) as response:
        await response.read()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}")


async def elsewhere(plan, incoming):
    """Let a process of the run's own do the work."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, pathlib.Path(__file__).with_name("host_threads.py"), json.dumps(plan),
        env={**os.environ, "TRACEPARENT": incoming["traceparent"], "TRACESTATE": incoming["tracestate"]})
    if await child.wait() != 0:
        raise RuntimeError(f"the run's process has exited with {child.returncode}")


async def work(session, plan, *on):
    """Make the calls of a run."""
    if plan["together"]:
        await asyncio.gather(*(step(session, ms, plan, *on) for ms in plan["think"]))
        return
    for ms in plan["think"]:
        await step(session, ms, plan, *on)


async def serve(request):
    rpc_request = await request.json()
    message = rpc_request["params"]["message"]
    plan = json.loads(message["parts"][0]["text"])
    if COOPERATION == "process":
        await elsewhere(plan, request.headers)
    else:
        await work(request.app["session"], plan, *hand_on(request.headers, message))
    return web.json_response({"jsonrpc": "2.0", "id": rpc_request["id"], "result": {
        "kind": "task", "id": str(uuid.uuid4()), "contextId": message["contextId"],
        "status": {"state": "completed"},
    }})


async def main():
    app = web.Application()
    app.router.add_post("/", serve)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4)) as app["session"]:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(os.environ["PORT"])).start()
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        print("ready", flush=True)
        await told.wait()
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
