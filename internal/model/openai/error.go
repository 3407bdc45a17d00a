package openai

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// The types of an [Error].
const (
	TypeRateLimited     = "rate_limited"            // 429; tried again
	TypeServerError     = "server_error"            // 5xx, or an error within a stream; tried again
	TypeConnection      = "connection"              // no connection, or it failed before the answer; tried again, except for a bad certificate
	TypeStreamBroken    = "stream_broken"           // the answer broke off; tried again
	TypeTimeout         = "timeout"                 // silence; tried again
	TypeQuotaExceeded   = "quota_exceeded"          // the account has nothing left
	TypeAuthentication  = "authentication"          // 401
	TypePermission      = "permission_denied"       // 403
	TypeNotFound        = "not_found"               // 404: unknown model, or a wrong base URL
	TypeContextLength   = "context_length_exceeded" // the conversation is too long for the model
	TypeInvalidRequest  = "invalid_request"         // every other 4xx, or the SDK refused the request
	TypeInvalidResponse = "invalid_response"        // the server does not speak this API
	TypeContentFilter   = "content_filter"          // the provider's filter stopped the reply
)

// Error says why a model did not reply.
type Error struct {
	// Type is one of the Type constants.
	Type string
	// Model and BaseURL say who was asked; the URL is without its password.
	Model   string
	BaseURL string
	// Status is the HTTP status; 0 when there was none.
	Status int
	// Code is the server's own code or type of the error; may be empty.
	Code string
	// Message is the server's message, or what happened in our words.
	Message string
	// RetryAfter is how long the server asked to wait; 0 when it did not.
	RetryAfter time.Duration

	permanent bool // not worth another attempt, although others of its type are
	cause     error
}

// Error names the model, the server, the status, the server's message, and what to check.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("model " + e.Model + " at " + e.BaseURL + ": ")
	if e.Status != 0 {
		b.WriteString(strconv.Itoa(e.Status))
		if text := http.StatusText(e.Status); text != "" {
			b.WriteString(" " + text)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Message)
	b.WriteString(e.hint())
	return b.String()
}

// Unwrap returns what caused the error on this side; nil when the server told it.
func (e *Error) Unwrap() error { return e.cause }

// Is makes the error of a conversation that is too long a [loop.ErrTooLong].
func (e *Error) Is(target error) bool {
	return target == loop.ErrTooLong && e.Type == TypeContextLength
}

// ErrorType is the error's low-cardinality name.
func (e *Error) ErrorType() string { return e.Type }

// hint says which setting to look at.
func (e *Error) hint() string {
	switch e.Type {
	case TypeAuthentication:
		return " (check the API key)"
	case TypeQuotaExceeded:
		return " (check the plan and billing of the account)"
	case TypeNotFound:
		return " (check the model name, and the base URL, which usually ends in /v1)"
	case TypeConnection:
		return " (check the base URL, and that a server listens there)"
	case TypeInvalidResponse:
		return " (check the base URL, which usually ends in /v1)"
	default:
		return ""
	}
}

func (e *Error) retryable() bool {
	switch e.Type {
	case TypeRateLimited, TypeServerError, TypeConnection, TypeStreamBroken, TypeTimeout:
		return !e.permanent
	default:
		return false
	}
}

// typeOf classifies an answer by its status and by the server's code and type.
func typeOf(status int, fault serverFault) string {
	if named := typeOfCode(fault.Code, fault.Type); named != "" {
		return named
	}
	switch {
	case status == http.StatusTooManyRequests:
		return TypeRateLimited
	case status == http.StatusBadRequest && strings.Contains(fault.Message, "maximum context length"): // which some servers tell in no other way
		return TypeContextLength
	case status >= 500:
		return TypeServerError
	case status == http.StatusUnauthorized:
		return TypeAuthentication
	case status == http.StatusForbidden:
		return TypePermission
	case status == http.StatusNotFound:
		return TypeNotFound
	default:
		return TypeInvalidRequest
	}
}

// typeOfCode knows the codes that say more than the status. It returns "" for others.
func typeOfCode(names ...string) string {
	for _, name := range names {
		switch name {
		case "insufficient_quota", "billing_hard_limit_reached":
			return TypeQuotaExceeded
		case "context_length_exceeded", "exceed_context_size_error":
			return TypeContextLength
		case "content_filter":
			return TypeContentFilter
		}
	}
	return ""
}

// typeInStream classifies an error object that came instead of the next chunk, where
// the status is already spent. What it does not know is the server's fault.
func typeInStream(fault serverFault) string {
	if status, err := strconv.Atoi(fault.Code); err == nil && status >= 400 {
		return typeOf(status, fault)
	}
	if named := typeOfCode(fault.Code, fault.Type); named != "" {
		return named
	}
	switch {
	case fault.mentions("rate_limit"):
		return TypeRateLimited
	case fault.mentions("authentication"), fault.mentions("invalid_api_key"):
		return TypeAuthentication
	case fault.mentions("invalid_request"), fault.mentions("BadRequest"):
		return TypeInvalidRequest
	default:
		return TypeServerError
	}
}
