package manifest

import "fmt"

// Problem is what is wrong with one place of a manifest.
type Problem struct { //nolint:errname // "problem" is the word for it
	// File is the path of the manifest, or of the folder.
	File string
	// Line counts from 1; 0 when no line is to blame.
	Line int
	// Message says what is wrong, and what is allowed.
	Message string
}

// Error returns file:line: message.
func (p Problem) Error() string {
	if p.Line == 0 {
		return p.File + ": " + p.Message
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Message)
}
