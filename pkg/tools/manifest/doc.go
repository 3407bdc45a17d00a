// Package manifest reads tools from a folder of files, one tool or server a file, so that
// any program becomes a tool, without Go.
//
//	name: word_count
//	description: Count the words of a text file.
//	parameters:
//	  type: object
//	  properties: {path: {type: string}}
//	  required: [path]
//	command: [python3, "{tools}/word_count.py"]
//	resources: [{key: "sandbox/{$sandbox}/{path...}", access: shared}]
//	delivery: idempotent
//
// A file is YAML (JSON is YAML too), named *.yaml, *.yml or *.json.
// docs/tools-of-your-own.md describes the fields; [Parse] is authoritative.
//
// One of kind mcp names a server of the Model Context Protocol instead, and how its tools are used:
// the [mcp.Server] that a file of package mcp makes, too, with the same fields ([ParseServer]).
//
// A [Folder] is read again at every [Folder.Load]. A file that is broken is a [Problem]
// with its line, and takes nothing else with it: the other tools are there, and of the
// broken one the last version that worked, if this process has seen one.
package manifest
