"""Sends the examples of what makes objects, and prints a configuration in which requests name these objects."""

import json
import sys
import urllib.request

url, token = sys.argv[1:]
description = json.load(urllib.request.urlopen(url + "/openapi.json"))
operations = {op["operationId"]: (method, path, op) for path, methods in description["paths"].items() for method, op in methods.items()}


def send(method: str, path: str, body: object = None, **headers: str) -> dict:
    headers |= {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    request = urllib.request.Request(url + path, method=method.upper(), headers=headers, data=None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read() or "{}")


for name in ["new-session", "send-call", "send-calls", "fork-session", "set-limit", "add-schedule", "add-template"]:
    method, path, op = operations[name]
    headers = {p["name"]: p["example"] for p in op.get("parameters", []) if p["in"] == "header" and "example" in p}
    wait = "?wait_ms=30000" if any(p["name"] == "wait_ms" for p in op.get("parameters", [])) else ""
    send(method, path.replace("{session}", "s1") + wait, op["requestBody"]["content"]["application/json"]["example"], **headers)
for call in ["runs", "waits"]:
    send("post", "/v1/calls", {"tool": "bash", "arguments": {"command": "sleep 3600"}, "session_id": "s1"}, **{"Idempotency-Key": call})
while not (questions := send("get", "/v1/questions")["questions"]):
    pass

known = {
    "session": ["s1", "fork"], "call": ["c1", "c2", "t1", "waits", questions[0]["call_id"]], "lane": ["sandbox/s1"], "name": ["nightly", "reports"],
    "other": ["s1", "fork"], "path": ["report.md", "."], "at": ["c1", "c2"], "tenant": ["acme"], "pool": ["default"],
}
for name, values in known.items():
    print(f"[dictionaries.{name}]\nvalues = {json.dumps(values)}")
print("[parameters]")
for where, name in sorted({(p["in"], p["name"]) for _, _, op in operations.values() for p in op.get("parameters", []) if p["name"] in known}):
    print(f'"{where}.{name}" = {{ dictionary = "{name}", probability = 0.8 }}')
# What ends the objects is tried with others.
for name in ["remove-session", "remove-schedule", "remove-template", "remove-limit", "cancel-session", "kill-lane"]:
    print(f'[[operations]]\ninclude-operation-id = "{name}"\nparameters = {{}}')
