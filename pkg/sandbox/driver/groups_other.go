//go:build !linux

package driver

// Groups returns the control group in which the sandboxes of this process have theirs: there are
// none but on Linux.
func Groups() (dir string, err error) { return "", &GroupsError{Found: "not on this system"} }
