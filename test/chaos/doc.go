// Package chaos proves the laws of the lane engine on what real processes did while they were
// killed, stopped, cut off and restarted.
//
// Every test runs one kind of fault against servers, workers and callers that are processes of
// their own: the test binary started again in another role. They write down what they do;
// history_*_test.go hold that against the laws, know nothing of the engine, and give no benefit of
// the doubt: an execution without an end lasts until its worker was seen to be dead; what
// a stopped worker does after its lease counts from the moment it goes on. What a test does, and
// the calls that are made, follow from a seed, which is printed and can be given as -seed.
//
// The short form runs with the other tests. `make chaos` runs the long one: see docs/chaos.md.
package chaos
