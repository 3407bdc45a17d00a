// Package integration holds the tests of the promises that only real processes can
// keep or break: the commands as they are built, their exit codes and output, and
// what is left when they are killed.
//
// The binaries are built once for a run of the tests, with the race detector when the
// tests have it. Every process belongs to the test that started it and is gone when that test
// ends; all of them listen on loopback only, on ports that the system chooses.
//
// Nothing here waits for a time to pass. A test holds a call with a gate, a file
// that the call's command waits for to go away, so it knows what runs when a process
// is killed; everything else waits for a line of output.
//
// A case that cannot run on this machine says so on stderr and is skipped; with
// TOOLFLEET_INTEGRATION=required it fails instead.
package integration
