#!/usr/bin/env python3
"""A small MCP server for tests: on stdin and stdout, or with `--http FILE [PORT]` over HTTP; the port is in FILE then.

Its tools are `length` (of the environment variable, or of the header, `KEY`), `crash`, and `cwd`.
"""

import http.server
import json
import os
import sys

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("length", "crash", "cwd")]


def answer(message, key):
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "mcp_server.py", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call" and params["name"] == "crash":
        os._exit(7)
    words = os.getcwd() if params.get("name") == "cwd" else f"a key of {len(key)}"
    return {"content": [{"type": "text", "text": words}]}


def respond(message, key):
    if "id" in message:
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message, key)}).encode() + b"\n"
    return b""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = respond(message, self.headers.get("KEY", ""))
        self.send_response(200 if body else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        # It tells nothing unasked.
        self.send_error(405)

    def log_message(self, *_):
        pass


if "--http" in sys.argv:
    path, *port = sys.argv[sys.argv.index("--http") + 1:]
    server = http.server.HTTPServer(("127.0.0.1", int(port[0]) if port else 0), Handler)
    with open(path + ".new", "w") as file:
        file.write(str(server.server_port))
    os.replace(path + ".new", path)
    server.serve_forever()
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(respond(json.loads(line), os.environ.get("KEY", "")))
    sys.stdout.buffer.flush()
