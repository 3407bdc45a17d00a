"""Makes what follows from docs/openapi.json and from _async.py.

    python scripts/generate.py          # writes
    python scripts/generate.py --check  # exits with 1 if something is out of date

- src/toolfleet/types.py: a TypedDict for each schema, and where each operation is
- src/toolfleet/_sync.py: the client without async
"""

from __future__ import annotations

import json
import keyword
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
PACKAGE = HERE / "src" / "toolfleet"
DESCRIPTION = HERE.parent.parent / "docs" / "openapi.json"

Schema = dict[str, Any]


def class_name(schema: str) -> str:
    """Name of the class of a schema: Send-callsRequest becomes SendCallsRequest."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]", schema))


def references(node: Any) -> set[str]:
    """Names of the schemas that a part of the description names."""
    if isinstance(node, dict):
        kind, _, name = str(node.get("$ref", "")).rpartition("/")
        found = {name} if kind == "#/components/schemas" else set()
        return found.union(*(references(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(references(value) for value in node))
    return set()


def reached(start: set[str], schemas: dict[str, Schema]) -> set[str]:
    """These schemas, and all that they use."""
    found: set[str] = set()
    while start:
        found |= start
        start = set().union(*(references(schemas[name]) for name in start)) - found
    return found


def python_type(schema: Schema, sent: bool) -> str:
    """Python type of a schema. Times are texts; a request may also have a datetime."""
    if "$ref" in schema:
        return class_name(schema["$ref"].rsplit("/", 1)[1])
    if "enum" in schema:
        return f"Literal[{', '.join(repr(value) for value in schema['enum'])}]"
    kind = schema.get("type")
    if isinstance(kind, list):  # a list of Go; an answer has null for none
        kind = next(k for k in kind if k != "null")
        made = python_type({**schema, "type": kind}, sent)
        return made if sent else f"{made} | None"
    if kind == "array":
        return f"list[{python_type(schema['items'], sent)}]"
    if kind == "object":
        of = schema.get("additionalProperties")
        return f"dict[str, {python_type(of, sent) if isinstance(of, dict) else 'Any'}]"
    if kind == "string" and schema.get("format") == "date-time" and sent:
        return "str | datetime"
    return {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}.get(str(kind), "Any")


def typed_dict(name: str, schema: Schema, sent: bool) -> str:
    """The classes of an object: what is always there is in a class of its own."""
    properties: dict[str, Schema] = schema.get("properties", {})
    needed = set(schema.get("required", []))
    for field in properties:
        if not field.isidentifier() or keyword.iskeyword(field):
            return functional(name, properties, needed, sent)

    def fields(wanted: list[str]) -> str:
        lines = []
        for field in wanted:
            lines.append(f"    {field}: {python_type(properties[field], sent)}")
            if doc := properties[field].get("description"):
                lines.append(f'    """{doc}"""')
        return "\n".join(lines) or "    pass"

    always = [field for field in properties if field in needed]
    sometimes = [field for field in properties if field not in needed]
    if not sometimes:
        return f"class {name}(TypedDict):\n{fields(always)}\n"
    if not always:
        return f"class {name}(TypedDict, total=False):\n{fields(sometimes)}\n"
    return f"class _{name}(TypedDict):\n{fields(always)}\n\n\nclass {name}(_{name}, total=False):\n{fields(sometimes)}\n"


def functional(name: str, properties: dict[str, Schema], needed: set[str], sent: bool) -> str:
    """An object with a field whose name is a word of Python."""

    def part(wanted: list[str], title: str, total: bool) -> str:
        inner = ", ".join(f'{field!r}: "{python_type(properties[field], sent)}"' for field in wanted)
        return f'{title} = TypedDict("{title}", {{{inner}}}, total={total})\n'

    always = [field for field in properties if field in needed]
    sometimes = [field for field in properties if field not in needed]
    if not always or not sometimes:
        return part(always or sometimes, name, bool(always))
    return part(always, f"_{name}A", True) + part(sometimes, f"_{name}B", False) + f"\n\nclass {name}(_{name}A, _{name}B):\n    pass\n"


def types(description: dict[str, Any]) -> str:
    """The module of types."""
    schemas: dict[str, Schema] = description["components"]["schemas"]
    operations = [
        (operation["operationId"], method.upper(), path, operation)
        for path, methods in sorted(description["paths"].items())
        for method, operation in sorted(methods.items())
    ]
    bodies = reached(set().union(*(references(o.get("requestBody", {})) for *_, o in operations)), schemas)
    refusals = references(description["components"].get("responses", {}))
    answers = reached(refusals.union(*(references(o["responses"]) for *_, o in operations)), schemas)
    out = [
        '"""Types and operations of the HTTP API. Made by scripts/generate.py from docs/openapi.json."""\n\n'
        "from __future__ import annotations\n\n"
        "from datetime import datetime\n"
        "from typing import Any, Dict, Literal, Tuple, TypedDict\n\n"
        "__all__ = [\n" + "".join(f'    "{class_name(name)}",\n' for name in sorted(schemas, key=class_name)) + "]\n"
    ]
    for name in sorted(schemas, key=class_name):
        schema = schemas[name]
        sent = name in bodies and name not in answers
        if schema.get("type") == "object" and schema.get("properties"):
            out.append(typed_dict(class_name(name), schema, sent))
        else:
            out.append(f"{class_name(name)} = {python_type(schema, sent)}\n")
    names = "\n".join(f'    "{name}",' for name, *_ in sorted(operations))
    out.append(f"Operation = Literal[\n{names}\n]\n")
    where = "\n".join(f'    "{name}": ("{method}", "{path}"),' for name, method, path, _ in sorted(operations, key=lambda o: o[0]))
    out.append(f"OPERATIONS: Dict[Operation, Tuple[str, str]] = {{\n{where}\n}}\n")
    return "\n\n".join(out)


WITHOUT_ASYNC = [
    (r"\bawait to_thread\.run_sync\((\w+)\)", r"\1()"),
    (r"\bawait anyio\.sleep\(", "time.sleep("),
    (r"\bimport anyio\b\n", ""),
    (r"\bfrom anyio import to_thread\n", ""),
    (r"\bawait ", ""),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bAsync(Iterator|Generator)\b", r"\1"),
    (r"\bAsync(Client|Session|Future)\b", r"\1"),
    (r"\bhttpx\.AsyncClient\b", "httpx.Client"),
    (r"\bhttpx\.AsyncBaseTransport\b", "httpx.BaseTransport"),
    (r"\bhttpx\.Async", "httpx."),
    (r"\b__a(enter|exit|iter)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\baread\b", "read"),
    (r"\baiter_bytes\b", "iter_bytes"),
    (r"\bimport asyncio\n", ""),
]


def without_async(text: str) -> str:
    """The same module for programs without async."""
    text = text.split('"""', 2)[2]
    for pattern, by in WITHOUT_ASYNC:
        text = re.sub(pattern, by, text)
    return '"""The client. Made by scripts/generate.py from _async.py."""' + text


def main() -> int:
    made = {
        PACKAGE / "types.py": types(json.loads(DESCRIPTION.read_text())),
        PACKAGE / "_sync.py": without_async((PACKAGE / "_async.py").read_text()),
    }
    old = [file for file, text in made.items() if not file.exists() or file.read_text() != text]
    if "--check" in sys.argv:
        for file in old:
            print(f"{file}: is out of date: run python scripts/generate.py", file=sys.stderr)
        return 1 if old else 0
    for file in old:
        file.write_text(made[file])
        print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
