"""An A2A agent (0.3, JSON-RPC) in Flask that calls the tool of the MCP server at
$NEXT for what it is asked. It answers with the ids of the runs that it and that
server were given, its own first: it knows of wopproxy no more than that header.
"""

import json
import os
import signal
import sys
import uuid

import requests
import waitress
from flask import Flask, jsonify, request

PORT, NEXT = os.environ["PORT"], os.environ["NEXT"]
CARD = {
    "name": "agent", "description": "calls a tool", "version": "1", "protocolVersion": "0.3.0",
    "url": f"http://localhost:{PORT}/a2a", "preferredTransport": "JSONRPC",
    "capabilities": {}, "defaultInputModes": ["text"], "defaultOutputModes": ["text"], "skills": [],
}

app = Flask(__name__)


@app.get("/.well-known/agent-card.json")
def card():
    return jsonify(CARD)


@app.post("/a2a")
def a2a():
    asked = request.get_json()
    if asked["method"] != "message/send":
        return jsonify(jsonrpc="2.0", id=asked["id"], error={"code": -32601, "message": "Method not found"})
    message = asked["params"]["message"]
    question = message["parts"][0]["text"]
    runs = [request.headers.get("Run-Id", ""), call_tool({"question": question})]
    task = {
        "kind": "task", "id": str(uuid.uuid4()), "contextId": message.get("contextId") or str(uuid.uuid4()),
        "status": {"state": "completed"},
        "artifacts": [{"artifactId": "runs", "parts": [{"kind": "text", "text": json.dumps(runs)}]}],
    }
    return jsonify(jsonrpc="2.0", id=asked["id"], result=task)


def call_tool(arguments):
    """Calls the tool of the next server, and returns the text of its answer."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run", "arguments": arguments}}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
    answer = requests.post(f"{NEXT}/mcp", json=call, headers=headers, timeout=60)
    answer.raise_for_status()
    return answer.json()["result"]["content"][0]["text"]


signal.signal(signal.SIGTERM, lambda *_: sys.exit())
waitress.serve(app, listen=f"*:{PORT}", threads=16)
