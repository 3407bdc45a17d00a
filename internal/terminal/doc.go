// Package terminal shows people a session while it runs: line by line, only ever
// adding to what stands there already, so that it reads the same on a screen, in
// a pipe and in the log of a build.
//
//	› Make the tests pass.                          what the user said
//
//	● I run the tests first.                        what the model says, as it comes
//	[1.1 bash] › go test ./...                      a tool call: step 1, its first call
//	[1.2 grep] › "Count" in .
//	[1.1 bash] ▸ running on w1
//	[1.2 grep] ✓ ok · on w1, attempt 1 · ran 3 ms   calls run side by side; each line
//	           │ stats.go:7:func Count() int        says whose it is
//	[1.1 bash] ✓ ok · on w1, attempt 1 · ran 1.2 s
//	           │ FAIL
//
// A [View] gets everything as [loop.Event] values and keeps only what its next
// line and its summary need. It is for reading only: the journal is
// the truth, and `--json` is for programs.
//
// # What is shown is never trusted
//
// Models, tools and the files they read may contain anything. Whatever comes from
// them is made visible before it is written: escape sequences and other control
// characters, marks that turn the direction of text, and what is not UTF-8. Only
// the view itself writes in the first column; the model's text is indented, and
// what a tool returned stands behind a bar. So neither can draw lines that look
// like the view's.
//
// # What happens on failure
//
// Nothing: a session does not fail because its view does. After the first
// write that fails, the view is silent.
package terminal
