package driver

// UnusableError says why something of the host that makes limits hard cannot be used.
type UnusableError struct {
	// What is control groups or quotas.
	What string
	// Found is what is there instead, Advice what would change that; "" when nothing would.
	Found, Advice string
}

// Error implements the error interface.
func (e *UnusableError) Error() string { return "no " + e.What + " for sandboxes: " + e.Found }
