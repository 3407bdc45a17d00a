package snapshot

import (
	"errors"
	"fmt"
)

// What can be wrong with a tree or a directory. They come wrapped in an [*Error].
var (
	// ErrUnsafe says that a tree has an entry that no honest [Save] makes.
	ErrUnsafe = errors.New("unsafe entry")
	// ErrLimit says that a limit was exceeded; see [Limits].
	ErrLimit = errors.New("limit exceeded")
	// ErrCorrupt says that a content is damaged, cut off, or another.
	ErrCorrupt = errors.New("corrupt content")
)

// Error says what is wrong with an entry.
type Error struct {
	// Kind is [ErrUnsafe], [ErrLimit] or [ErrCorrupt].
	Kind error
	// Entry is the path; "" when the fault is not with one entry.
	Entry string
	// Reason completes the sentence.
	Reason string
}

// Error implements the error interface.
func (e *Error) Error() string {
	if e.Entry == "" {
		return fmt.Sprintf("%v: %s", e.Kind, e.Reason)
	}
	return fmt.Sprintf("%v: %.200q: %s", e.Kind, e.Entry, e.Reason)
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

// ErrorType returns unsafe_entry, limit_exceeded or corrupt_content.
func (e *Error) ErrorType() string {
	switch {
	case errors.Is(e.Kind, ErrUnsafe):
		return "unsafe_entry"
	case errors.Is(e.Kind, ErrLimit):
		return "limit_exceeded"
	default:
		return "corrupt_content"
	}
}

func unsafef(name, format string, args ...any) error {
	return &Error{Kind: ErrUnsafe, Entry: name, Reason: fmt.Sprintf(format, args...)}
}

func corruptf(format string, args ...any) error {
	return &Error{Kind: ErrCorrupt, Reason: fmt.Sprintf(format, args...)}
}

func limitf(name, format string, args ...any) error {
	return &Error{Kind: ErrLimit, Entry: name, Reason: fmt.Sprintf(format, args...)}
}
