// Package confine takes rights away from the calling process or thread: capabilities, system
// calls (seccomp) and files (Landlock). None of it can be undone, all of it is inherited, and
// most of it is about one thread: lock the goroutine to its thread, and replace the program
// afterwards, so that every thread of it has what this one had.
package confine
