"""A server of the Model Context Protocol on standard input and output: lists in Markdown files."""

import json
import sys

PATH = {"path": {"type": "string", "description": "The file of the list, relative to the workspace."}}
added = 0  # while this process lives: from the first call of a session on


def add(arguments):
    global added
    with open(arguments["path"], "a") as file:
        file.write("- [ ] " + arguments["item"] + "\n")
    added += 1
    return f"{added} added in this session"


def show(arguments):
    with open(arguments["path"]) as file:
        return file.read()


def clear(arguments):
    open(arguments["path"], "w").close()
    return "empty"


def tool(run, description, **more):
    schema = {"type": "object", "properties": PATH | more, "required": list(PATH | more)}
    return {"run": run, "description": description, "inputSchema": schema}


TOOLS = {
    "add": tool(add, "Add an item to a list.", item={"type": "string"}),
    "show": tool(show, "Show a list."),
    "clear": tool(clear, "Remove all items of a list."),
}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "todo", "version": "1"}}
    if method == "tools/list":
        return {"tools": [{"name": name, "description": t["description"], "inputSchema": t["inputSchema"]} for name, t in TOOLS.items()]}
    if method == "tools/call":
        try:
            text, failed = TOOLS[params["name"]]["run"](params["arguments"]), False
        except Exception as fault:
            text, failed = str(fault), True
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    return {} if method == "ping" else None


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue  # a notification
    result = answer(message["method"], message.get("params", {}))
    reply = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
