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
// A manifest of kind mcp names a server of the Model Context Protocol instead, and how its tools
// are used. It has the fields of a file of package mcp, and becomes the same [mcp.Server].
//
// A [Folder] is read again at every [Folder.Load]. An invalid file is a [Problem] with its line.
// The other tools stay, and so does the last valid version of the invalid one, if this process read
// it.
package manifest
