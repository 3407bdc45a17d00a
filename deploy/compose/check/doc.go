// Package check holds the tests of deploy/compose. It is a module of its own, so that
// the loader of compose files is no dependency of toolfleet.
package check
