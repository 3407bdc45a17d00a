// Package codes has the codes of errors that models and people read: what was wrong with a file,
// with arguments, with a payload, or with the machine. Package protocol declares the others, on
// which programs branch. Both are values of [protocol.Code], and no code is in both.
package codes

import (
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Errors on which programs branch; pkg/fleet exports them.
var (
	ErrInvalid  = errors.New("invalid input")
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("already exists")
)

// As is an error that is also one of these, with the text of err alone.
func As(kind, err error) error { return kindError{err, kind} }

type kindError struct {
	error

	kind error
}

func (e kindError) Is(target error) bool { return target == e.kind }

func (e kindError) Unwrap() error { return e.error }

// TurnLimit is the error of a turn that reached a limit.
func TurnLimit(limit string) *protocol.Error {
	return &protocol.Error{
		Code:    protocol.CodeLimitReached,
		Message: "the turn reached its limit of " + limit + ": raise it, or ask for less at a time",
	}
}

// TimeLimit makes the cause with which a context ends when the time of a turn is over, for callers
// that bound it: the turn ends as limit_reached. See [context.Cause].
func TimeLimit(limit time.Duration) *protocol.Error { return TurnLimit(limit.String() + " (timeout)") }

// A model's request was wrong.
const (
	UnknownTool protocol.Code = "unknown_tool"
	// PathEscape is a path outside of what the call may touch.
	PathEscape     protocol.Code = "path_escape"
	InvalidPath    protocol.Code = "invalid_path"
	InvalidPattern protocol.Code = "invalid_pattern"
	InvalidPatch   protocol.Code = "invalid_patch"
	InvalidJSON    protocol.Code = "invalid_json"
	IsDirectory    protocol.Code = "is_directory"
	NotDirectory   protocol.Code = "not_directory"
	NotRegular     protocol.Code = "not_regular_file"
	Protected      protocol.Code = "protected"
	EditNotFound   protocol.Code = "edit_not_found"
	EditNotUnique  protocol.Code = "edit_not_unique"
	FileChanged    protocol.Code = "file_changed"
	FileNotRead    protocol.Code = "file_not_read"
	NotText        protocol.Code = "not_text"
	TooLarge       protocol.Code = "too_large"
	// UnsafeEntry is what an archive may not have, and InvalidArchive one that is damaged or none.
	UnsafeEntry    protocol.Code = "unsafe_entry"
	InvalidArchive protocol.Code = "invalid_archive"
	Language       protocol.Code = "language_unavailable"
	NetworkOff     protocol.Code = "network_off"
	LoginRequired  protocol.Code = "login_required"
)

// A worker does not run the call.
const (
	UnknownPayload     protocol.Code = "unknown_payload"
	InvalidPayload     protocol.Code = "invalid_payload"
	PayloadTooLarge    protocol.Code = "payload_too_large"
	SandboxLevel       protocol.Code = "sandbox_level"
	SandboxUnsupported protocol.Code = "sandbox_unsupported"
	NotSigned          protocol.Code = "not_signed"
	// IDReused is a call with the id of another one of its session.
	IDReused protocol.Code = "id_reused"
	// TurnPostponed is a turn of a trigger that did not begin: it comes later, or was left out.
	TurnPostponed protocol.Code = "turn_postponed"
)
