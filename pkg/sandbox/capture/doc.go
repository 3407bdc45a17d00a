// Package capture keeps what a command writes, within a bound.
//
// Of each stream the head and the tail are kept, half of the limit each, with a
// mark between them that says how much is missing: the head shows what a command
// was doing, the tail how it ended. A stream that goes far beyond its limit is
// cut off ([ErrLimit]) so that a command cannot keep a reader busy for ever.
package capture
