// Package looptest tests the ports of package loop: [RunJournal] is what every
// [loop.Journal] must pass, and [Journal] is one in memory that does.
package looptest
