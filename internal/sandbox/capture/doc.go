// Package capture keeps what a command writes, within a bound.
//
// Of each stream the head and the tail are kept, half of the limit each, with a
// mark between them that says how much is missing: the head shows what a command
// was doing, the tail how it ended. A command may write without end: what it writes is
// counted, and beyond [Burst] it is read more slowly, so that no command keeps the
// worker's processors busy with reading.
package capture
