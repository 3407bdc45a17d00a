package httpapi

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Problem is the body of an answer that refuses or fails (RFC 9457), of type
// application/problem+json. Code is one that programs can compare: those of results, and invalid,
// unauthorized, forbidden, exists, unreachable and draining.
type Problem struct { //nolint:errname // the field says problem
	Title  string              `json:"title" example:"Not Found"`
	Status int                 `json:"status" example:"404"`
	Detail string              `json:"detail" example:"session s1: not found"`
	Code   protocol.Code       `json:"code" example:"not_found"`
	Errors []*huma.ErrorDetail `json:"errors,omitempty" doc:"What is wrong with which part of the request."`

	retryAfter protocol.Millis
}

// Error implements error.
func (p *Problem) Error() string { return p.Detail }

// GetStatus implements [huma.StatusError].
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements [huma.ContentTypeFilter].
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// GetHeaders implements [huma.HeadersError].
func (p *Problem) GetHeaders() http.Header {
	if p.retryAfter <= 0 {
		return nil
	}
	return http.Header{"Retry-After": {strconv.Itoa(int(math.Ceil(float64(p.retryAfter) / 1000)))}}
}

// Codes of problems that are not those of results.
const (
	codeInvalid      protocol.Code = "invalid"
	codeUnauthorized protocol.Code = "unauthorized"
	codeForbidden    protocol.Code = "forbidden"
	codeExists       protocol.Code = "exists"
	codeUnreachable  protocol.Code = "unreachable"
	codeDraining     protocol.Code = "draining"
)

// status says which status and code an error has.
func status(err error) (int, protocol.Code) {
	var refused *judge.RefusalError
	var coded *protocol.Error
	switch {
	case errors.As(err, &refused):
		return http.StatusForbidden, codeForbidden
	case errors.Is(err, fleet.ErrRights): // of this process, not of the client
		return http.StatusServiceUnavailable, codeUnreachable
	case errors.Is(err, fleet.ErrNotFound), errors.Is(err, loop.ErrRemoved):
		return http.StatusNotFound, protocol.CodeNotFound
	case errors.Is(err, fleet.ErrExists):
		return http.StatusConflict, codeExists
	case errors.Is(err, fleet.ErrBusy):
		return http.StatusTooManyRequests, protocol.CodeBusy
	case errors.Is(err, access.ErrUnknown): // while the request waited
		return http.StatusUnauthorized, codeUnauthorized
	case errors.Is(err, fleet.ErrQuota):
		return http.StatusTooManyRequests, protocol.CodeQuota
	case errors.Is(err, fleet.ErrSessionBusy):
		return http.StatusConflict, protocol.CodeBusy
	case errors.Is(err, fleet.ErrUnreachable), errors.Is(err, fleet.ErrClosed), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return http.StatusServiceUnavailable, codeUnreachable
	case errors.Is(err, fleet.ErrInvalid), errors.Is(err, protocol.ErrInvalidName), errors.Is(err, protocol.ErrInvalidCall):
		return http.StatusUnprocessableEntity, codeInvalid
	case errors.As(err, &coded):
		switch coded.Code {
		case protocol.CodePolicyDenied:
			return http.StatusForbidden, coded.Code
		case protocol.CodeNotFound:
			return http.StatusNotFound, coded.Code
		case protocol.CodeFleetUnavailable:
			return http.StatusServiceUnavailable, codeUnreachable
		default:
			return http.StatusUnprocessableEntity, coded.Code
		}
	default:
		return http.StatusInternalServerError, protocol.CodeInternal
	}
}

// problem turns an error of the client into an answer.
func problem(err error) error {
	if _, known := errors.AsType[huma.StatusError](err); known {
		return err
	}
	number, code := status(err)
	made := &Problem{Title: http.StatusText(number), Status: number, Detail: err.Error(), Code: code}
	if coded, is := errors.AsType[*protocol.Error](err); is {
		made.retryAfter = coded.RetryAfter
	}
	return made
}

// late is the error of a request whose time is over while something has not ended in the fleet, as
// when no coordinator runs. The fleet itself answers.
func late(ctx context.Context, err error) error {
	if ctx.Err() == nil || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fleet.ErrUnreachable) {
		return err
	}
	return &Problem{Title: http.StatusText(http.StatusConflict), Status: http.StatusConflict, Detail: err.Error(), Code: protocol.CodeBusy}
}

// unreadable is what the library says with 500 of a body that the client has sent wrongly, or not
// to its end.
const unreadable = "cannot read request body"

// ofRequest is the problem of a request that does not fit its description.
func ofRequest(number int, message string, errs ...error) huma.StatusError {
	if number == http.StatusInternalServerError && message == unreadable {
		number = http.StatusBadRequest
	}
	if number == http.StatusUnsupportedMediaType {
		message = "Content-Type: must be application/json, or what /openapi.json says of this operation"
	}
	made := &Problem{Title: http.StatusText(number), Status: number, Detail: message, Code: codeInvalid}
	switch {
	case number == http.StatusUnauthorized:
		made.Code = codeUnauthorized
	case number == http.StatusForbidden:
		made.Code = codeForbidden
	case number == http.StatusNotFound:
		made.Code = protocol.CodeNotFound
	case number == http.StatusTooManyRequests:
		made.Code = protocol.CodeBusy
	case number == http.StatusServiceUnavailable:
		made.Code = codeUnreachable
	case number >= http.StatusInternalServerError:
		made.Code = protocol.CodeInternal
	}
	for _, err := range errs {
		var detail huma.ErrorDetailer
		if errors.As(err, &detail) {
			made.Errors = append(made.Errors, detail.ErrorDetail())
		} else if err != nil {
			made.Errors = append(made.Errors, &huma.ErrorDetail{Message: err.Error()})
		}
	}
	return made
}

func init() { //nolint:gochecknoinits // the library has them as global variables
	huma.NewError = ofRequest
	huma.DefaultArrayNullable = false // a list without elements is [], and null is none
}
