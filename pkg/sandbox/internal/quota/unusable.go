package quota

import "fmt"

// UnusableError says why quotas cannot be used for a directory, and what to do about it.
type UnusableError struct {
	// Found is what is there instead, Advice what would change that; "" when nothing would.
	Found, Advice string
	// Err is what the system said; nil when nothing was tried.
	Err error
}

// Error implements the error interface.
func (u *UnusableError) Error() string { return "quotas cannot be used: " + u.What() }

// What is what was found, and what the system said of it.
func (u *UnusableError) What() string {
	if u.Err != nil {
		return fmt.Sprintf("%s: %v", u.Found, u.Err)
	}
	return u.Found
}

func (u *UnusableError) Unwrap() error { return u.Err }
