// Package natsio is how a process meets NATS: connections that never give up,
// and the streams that every fleet has.
//
// [Connect] fails fast and clearly when the first connection cannot be made, and
// reconnects for ever afterwards. While there is no connection, publishing
// fails at once instead of filling a buffer: a delayed message of a worker that
// has lost its lease must never arrive later.
//
// [Ensure] makes the streams and buckets of a fleet, or checks those that exist.
// A stream with another configuration than the laws need is an error that names
// the difference; nothing is ever changed silently.
//
// [CheckRights] finds out at the start what the server would later refuse without an answer:
// it reports a refused publish to the connection, not to the goroutine that waits for the reply.
//
// The embedded server lives in a package of its own, so that workers do not link it.
package natsio
