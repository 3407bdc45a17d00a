package driver

// GroupsError says why sandboxes get no control groups.
type GroupsError struct {
	// Found is what is there instead, Advice what would change that; "" when nothing would.
	Found, Advice string
}

// Error implements the error interface.
func (e *GroupsError) Error() string { return "no control groups for sandboxes: " + e.Found }
