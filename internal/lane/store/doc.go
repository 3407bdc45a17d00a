// Package store is the streams and the object store of a fleet, by the few operations that the lane
// engine needs: publish on a condition, read one message, list a mailbox, remove, and keep a result
// once. It knows how the server answers, and what an answer is worth when several servers may give
// it. What the messages mean is the engine's.
package store
