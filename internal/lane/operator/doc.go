// Package operator looks at lanes from outside and interferes with them, as coordinator lane does:
// what waits, who holds a lane and what runs; pause, resume, wake, skip, kill. It reads the
// streams, asks the holders on core NATS, and says what it could not learn.
package operator
