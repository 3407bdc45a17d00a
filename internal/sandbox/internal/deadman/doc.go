// Package deadman is a dead man's switch: a supervisor kills what it runs unless somebody says in
// time that it may go on.
//
//	worker ── Keep: deadline, whenever it moves ──► supervisor ── Switch: none in time ──► kill
//
// A worker that was killed or stopped extends nothing, so what runs for it ends without it.
// Deadlines are times of CLOCK_BOOTTIME, which all processes of a host share and which goes on
// while the machine is suspended. A supervisor that was stopped itself finds its deadline passed as
// soon as it goes on.
package deadman
