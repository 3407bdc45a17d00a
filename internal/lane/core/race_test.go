//go:build race

package core_test

// raced says that the race detector makes tests ten times as slow.
const raced = true
