// Package spool keeps what a command writes, in the order in which it does: in memory at first,
// then in a file of the worker's that has no name.
//
//	memory ──► file: | head: the first 32 MiB | tail: a ring of 8 segments of 4 MiB |
//
// Of what does not fit, head and tail are kept, with a mark between them that says how many bytes
// are missing. Both streams of a command are in one spool, as frames that say whose bytes they
// have, and can be read together or apart.
package spool
