package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Words of [ErrorType] for errors that bring none of their own.
const (
	TypeCancelled = "cancelled"
	TypeTimeout   = "timeout"
	TypeOther     = "_OTHER"
)

// Fail marks the span as failed, with [ErrorType] of err as its status and as [KeyErrorType]. The
// text of err stays out of it: it may quote what a model or a tool wrote. A nil err does nothing.
func Fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	kind := ErrorType(err)
	span.SetStatus(codes.Error, kind)
	span.SetAttributes(KeyErrorType.String(kind))
}

// ErrorType returns the word of low cardinality that stands for err on spans and in
// logs: what the first error in its tree with an ErrorType method says, else
// [TypeCancelled] or [TypeTimeout] for the ends of a context, else [TypeOther].
func ErrorType(err error) string {
	var typed interface {
		error
		ErrorType() string
	}
	switch {
	case errors.As(err, &typed):
		return typed.ErrorType()
	case errors.Is(err, context.Canceled):
		return TypeCancelled
	case errors.Is(err, context.DeadlineExceeded):
		return TypeTimeout
	default:
		return TypeOther
	}
}
