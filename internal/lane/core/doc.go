// Package core is the part of the lane engine that decides: which calls of a lane may start,
// whether a worker may still act, what to do about somebody else's claim, and what becomes of a
// call after a crash. It does no input or output and has no clock: whoever asks tells the time. So
// it runs in the same way under a worker and under a simulation of the streams.
package core
