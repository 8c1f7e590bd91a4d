"""Posts stdin to an MCP server, with one of Python's HTTP libraries as it is.

usage: call.py urllib|requests|httpx URL
"""

import sys

library, url = sys.argv[1:]
body = sys.stdin.buffer.read()
headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

if library == "urllib":
    import urllib.request

    request = urllib.request.Request(url, data=body, headers=headers)
    with urllib.request.urlopen(request) as response:
        print(response.read().decode())
elif library == "requests":
    import requests

    response = requests.post(url, data=body, headers=headers)
    response.raise_for_status()
    print(response.text)
elif library == "httpx":
    import httpx

    response = httpx.post(url, content=body, headers=headers)
    response.raise_for_status()
    print(response.text)
else:
    sys.exit(f"no library {library}")
