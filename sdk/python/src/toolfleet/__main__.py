"""The command toolfleet."""

from __future__ import annotations

import argparse
import sys

from . import __version__, tools
from ._errors import ToolfleetError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="toolfleet", description="Tools of a toolfleet in Python.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve the tools of a file by the Model Context Protocol, on stdio")
    serve.add_argument("file", help="a Python file with functions that have the decorator @tool(...)")
    serve.add_argument("--listen", metavar="HOST:PORT", help="serve over HTTP, at http://HOST:PORT/mcp, for workers next to it")
    serve.add_argument("--token-file", metavar="FILE", help="file with the token that requests over HTTP need")
    options = parser.parse_args(argv)
    try:
        tools.serve(options.file, options.listen, options.token_file)
    except (ToolfleetError, OSError) as error:
        print(f"toolfleet: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
