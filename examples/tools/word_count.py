"""Counts the words of a file. Standard input is {"path": ..., "top": ...}."""

import collections
import json
import sys

arguments = json.load(sys.stdin)
try:
    with open(arguments["path"], encoding="utf-8") as file:
        text = file.read()
except (OSError, UnicodeDecodeError) as error:
    sys.exit(f"{arguments['path']} cannot be counted: {error}")  # to standard error, exit code 1

words = text.lower().split()
top = collections.Counter(words).most_common(arguments.get("top", 3))
json.dump({"words": len(words), "lines": len(text.splitlines()), "top": [{"word": w, "count": n} for w, n in top]}, sys.stdout)
