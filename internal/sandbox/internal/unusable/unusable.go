// Package unusable has the error that says why something of the host which makes limits hard cannot
// be used.
package unusable

import "fmt"

// What an [Error] is about.
const (
	Groups = "control groups"
	Quotas = "quotas"
)

// Error says why something of the host cannot be used, and what to do about it.
type Error struct {
	What string
	// Found is the actual state, Advice how to change it; "" if it cannot be changed.
	Found, Advice string
	// Err is what the system said; nil when nothing was tried.
	Err error
}

// Error implements the error interface.
func (e *Error) Error() string { return e.What + " cannot be used: " + e.Why() }

// Why is the actual state, and the system's error.
func (e *Error) Why() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Found, e.Err)
	}
	return e.Found
}

func (e *Error) Unwrap() error { return e.Err }
