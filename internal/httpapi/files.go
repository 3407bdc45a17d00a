package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// itoa is [strconv.Itoa].
func itoa(n int) string { return strconv.Itoa(n) }

// orEmpty makes an empty list of none: JSON has [] then, and not null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// Limited bounds a list.
type Limited struct {
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"How many at most."`
}

// AtCall is the state of the files after a call.
type AtCall struct {
	At protocol.CallID `query:"at" maxLength:"64" doc:"Call after which the files are. Default: the last one."`
}

// FileList lists files.
type FileList struct {
	Files []report.File `json:"files"`
}

// ChangeList lists changes of files.
type ChangeList struct {
	Changes []report.Change `json:"changes"`
}

// files registers operations on the files of workspaces.
func (a *api) files() {
	const tag = "Files"
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/files", "list-files", tag, "List the files of a session's workspace"),
		func(ctx context.Context, in *struct {
			SessionPath
			AtCall
		},
		) (*answer[FileList], error) {
			ctx, cancel := within(ctx)
			defer cancel()
			list, err := a.of(ctx, in.Session).Files(ctx, in.Session, in.At)
			return answered(FileList{orEmpty(list)}, err)
		})
	a.file(tag)
	a.archive(tag)
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/changes", "list-changes", tag, "List which calls changed which files"),
		func(ctx context.Context, in *SessionPath) (*answer[ChangeList], error) {
			ctx, cancel := within(ctx)
			defer cancel()
			list, err := a.of(ctx, in.Session).Changes(ctx, in.Session)
			return answered(ChangeList{orEmpty(list)}, err)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/diff", "get-diff", tag, "Get what a call changed, or the whole session, as a unified diff"),
		func(ctx context.Context, in *struct {
			SessionPath
			Call protocol.CallID `query:"call" maxLength:"64" doc:"Call whose changes are shown. Default: all of the session."`
		},
		) (*answer[Diff], error) {
			ctx, cancel := within(ctx)
			defer cancel()
			text, err := a.of(ctx, in.Session).Diff(ctx, in.Session, in.Call)
			return answered(Diff{text}, err)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/compare", "compare-sessions", tag, "Compare the files of two sessions as a unified diff"),
		func(ctx context.Context, in *struct {
			SessionPath
			Other protocol.SessionID `query:"other" required:"true" maxLength:"64" doc:"The other session."`
		},
		) (*answer[Diff], error) {
			ctx, cancel := within(ctx)
			defer cancel()
			text, err := a.of(ctx, in.Session).Compare(ctx, in.Session, in.Other)
			return answered(Diff{text}, err)
		})
}

// Diff is a unified diff.
type Diff struct {
	Diff string `json:"diff"`
}
