// Package blackbox holds the laws of docs/guarantees.md against a fleet of real binaries that are
// killed, and shares no code with them: it is written from docs/wire.md, and imports the NATS
// client only.
//
// It starts a coordinator, whose server the fleet uses, and workers; puts calls by the wire, which
// append to a file of their workspace when they begin and end; and kills workers and the server
// meanwhile. The calls are commands, or those of a handler in Go (goworker), or of a tool in Python
// or TypeScript (testdata), whose server is killed, too. Then it compares three things that nobody
// can bring into agreement afterwards: the sequences that the stream gave the calls, the order of
// the lines in those files, and the stored results. `make blackbox` runs the long form.
//
//	caller_test.go  puts calls, and learns their results
//	fleet_test.go   the processes, and their deaths
//	laws_test.go    the laws
package blackbox
