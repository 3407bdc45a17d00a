// Package firsthour works on projects as people have them, with the programs that people have: Go
// modules, Node and Python projects with dependencies, a REPL, a C project with make, a server for
// development, a repository with hooks and a submodule. Each project is a file in testdata: what a
// model calls, what it must read, and the project's files.
//
//	project ──► scripted model ──► coordinator run, in place  ──► what the model read: checked
//	                          └──► serve, worker, submit ─────┘
//
// Everything runs in level full, as the user of the tests, and as an ordinary one if that is root.
// By itself a project goes in place as an ordinary user, and over a fleet as root; a slow one goes
// one of these ways. make firsthour has each project go all of them.
package firsthour
