"""An MCP server on standard input and output: book asks a person by a form, photo returns an image."""

import base64
import json
import struct
import sys
import zlib

FORM = {"type": "object", "required": ["name", "seats"], "properties": {
    "name": {"type": "string", "title": "Name of the guest"},
    "seats": {"type": "integer", "title": "Seats", "default": 2},
    "room": {"type": "string", "title": "Room", "enum": ["red", "blue"], "default": "blue"},
    "window": {"type": "boolean", "title": "At the window"},
    "menu": {"type": "string", "title": "Menu", "oneOf": [{"const": "m1", "title": "Fish"}, {"const": "m2", "title": "Soup"}]},
    "drinks": {"type": "array", "title": "Drinks", "items": {"type": "string", "enum": ["tea", "water", "wine"]}},
}}
NONE = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "book", "description": "Book a table.", "inputSchema": NONE},
    {"name": "photo", "description": "A photo of the room.", "inputSchema": NONE, "annotations": {"readOnlyHint": True}},
]


def photo():
    """A PNG image of 160 x 90: a red square on blue."""
    rows = b"".join(b"\0" + b"".join(b"\xb3\x22\x2a" if 50 < x < 110 and 15 < y < 75 else b"\x1b\x54\xb8" for x in range(160)) for y in range(90))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 160, 90, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(c)) + t + c + struct.pack(">I", zlib.crc32(t + c)) for t, c in chunks)
    return base64.b64encode(data).decode()


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    asked = json.loads(line)
    method, id = asked.get("method"), asked.get("id")
    if method == "initialize":
        send({"id": id, "result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "desk", "version": "1"}}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": TOOLS}})
    elif method == "tools/call" and asked["params"]["name"] == "photo":
        send({"id": id, "result": {"content": [{"type": "image", "data": photo(), "mimeType": "image/png"}]}})
    elif method == "tools/call":
        booking = id
        send({"id": "form", "method": "elicitation/create", "params": {"message": "Who comes, and when?", "requestedSchema": FORM}})
    elif id == "form":
        text = "booked " + json.dumps(asked["result"], sort_keys=True)
        send({"id": booking, "result": {"content": [{"type": "text", "text": text}]}})
    elif id is not None and method:
        send({"id": id, "error": {"code": -32601, "message": "no such method"}})
