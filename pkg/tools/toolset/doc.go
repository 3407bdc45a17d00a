// Package toolset is the built-in tools, in sets that have names.
//
// A tool of a set says what its arguments are and plans a payload; the texts of results
// are in package render. Sets of other systems' tools ([OpenRath], [Smithers], [Files])
// plan the same payloads as [Core], so agents that were written for those keep their tool
// calls and share files and order with all others. See docs/tools.md for every argument.
package toolset
