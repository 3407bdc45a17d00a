// Package fault has what is wrong with a field of a setting, for packages that know its line.
package fault

// Fault is what is wrong with a field.
type Fault struct { //nolint:errname // "fault" is the word for it
	// At is the field, as a JSON pointer.
	At string
	// Message says what is wrong, and what is allowed.
	Message string
}

// Error returns the message.
func (f Fault) Error() string { return f.Message }
