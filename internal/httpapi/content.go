package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of an archive that a client sends.
const (
	// MaxArchive bounds its size, in bytes.
	MaxArchive = 1 << 30
	// archiveTime is in which time it must arrive.
	archiveTime = 10 * time.Minute
)

// binaryType is the type of the content of a file: browsers must not run it.
const binaryType = "application/octet-stream"

// binary is a content of such a type.
func binary(kind string) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{kind: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}}
}

// FilePath is a path in a workspace.
type FilePath struct {
	Path string `query:"path" required:"true" minLength:"1" maxLength:"4096" doc:"Path in the workspace."`
}

// Resolve implements [huma.Resolver]: the path becomes the one by which tools know the file.
func (f *FilePath) Resolve(huma.Context) []error {
	name, refused := modelpath.File(f.Path)
	if refused != nil {
		return []error{&huma.ErrorDetail{Location: "query.path", Message: refused.Message, Value: f.Path}}
	}
	f.Path = name
	return nil
}

// Unchanged is the condition of a change of a file.
type Unchanged struct {
	Match string `header:"If-Match" maxLength:"80" doc:"ETag that the file must have, as reading it returns. Otherwise the call fails with file_changed."`
}

// digest is the digest that the file must have; "" is any.
func (u Unchanged) digest() (string, error) {
	sum, quoted := strings.CutPrefix(u.Match, `"`)
	sum, ended := strings.CutSuffix(sum, `"`)
	if u.Match != "" && (!quoted || !ended || len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "") {
		return "", ofRequest(http.StatusUnprocessableEntity, "If-Match: must be one ETag, as reading the file returns")
	}
	return sum, nil
}

// file registers operations on one file.
func (a *api) file(tag string) {
	read := func(op *huma.Operation) {
		etag := map[string]*huma.Param{"ETag": {Description: "SHA-256 of the content.", Schema: &huma.Schema{Type: huma.TypeString}}}
		op.Errors = append(op.Errors, http.StatusRequestedRangeNotSatisfiable)
		op.Responses = map[string]*huma.Response{
			"200": {Description: "Content.", Headers: etag, Content: binary(binaryType)},
			"206": {Description: "The range that Range asks for.", Headers: etag, Content: binary(binaryType)},
			"304": {Description: "The content is that of If-None-Match."},
		}
	}
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/file", "read-file", tag, "Read a file of a session's workspace", read),
		func(ctx context.Context, in *struct {
			SessionPath
			AtCall
			FilePath
			NoneMatch string `header:"If-None-Match" doc:"ETag of a content that you have: with the same one the answer is 304."`
			Range     string `header:"Range" doc:"Bytes to read, as in bytes=0-1023."`
		},
		) (*huma.StreamResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, maxWait) // what is sent then takes longer
			defer cancel()
			file, err := a.of(ctx, in.Session).File(ctx, in.Session, in.Path, in.At)
			if err != nil {
				return nil, problem(err)
			}
			return &huma.StreamResponse{Body: func(out huma.Context) { //nolint:contextcheck // it has that of the request
				r, w := humago.Unwrap(out)
				w.Header().Set("Content-Type", binaryType)
				w.Header().Set("X-Content-Type-Options", "nosniff")
				w.Header().Set("ETag", strconv.Quote(file.SHA256))
				http.ServeContent(&problemWriter{ResponseWriter: w}, r, "", time.Time{}, file.Open(r.Context()))
			}}, nil
		})
	write := func(op *huma.Operation) { accepted(op); op.MaxBodyBytes = isolation.MaxFileSize + 1 }
	huma.Register(a.huma, operation(http.MethodPut, "/sessions/{session}/file", "write-file", tag, "Write a file of a session's workspace, as a call", write),
		func(ctx context.Context, in *struct {
			SessionPath
			FilePath
			Unchanged
			NoneMatch string `header:"If-None-Match" enum:"*" doc:"With * the call fails with file_changed if the file exists."`
			Mode      string `query:"mode" pattern:"^0?[0-7]{3}$" doc:"Permissions in octal, as 0755. Default: those of the file, and 0644 for a new one."`
			Keyed
			Waiting
			RawBody []byte `contentType:"application/octet-stream" required:"false"`
		},
		) (*answer[*CallState], error) {
			sum, err := in.digest()
			if err != nil {
				return nil, err
			}
			mode, _ := strconv.ParseUint(in.Mode, 8, 32) // of its pattern
			p := protocol.FilesWrite{Path: in.Path, Content: slices.Clone(in.RawBody), ExpectSHA256: sum, Mode: uint32(mode), Raw: true}
			if in.NoneMatch != "" {
				p.Guard = protocol.GuardAbsent
			}
			return answered(a.change(ctx, in.Session, in.Path, p, sum == "", in.Keyed, in.Waiting))
		})
	huma.Register(a.huma, operation(http.MethodDelete, "/sessions/{session}/file", "remove-file", tag, "Remove a file of a session's workspace, as a call", accepted),
		func(ctx context.Context, in *struct {
			SessionPath
			FilePath
			Unchanged
			Keyed
			Waiting
		},
		) (*answer[*CallState], error) {
			sum, err := in.digest()
			if err != nil {
				return nil, err
			}
			return answered(a.change(ctx, in.Session, in.Path, protocol.FilesRemove{Path: in.Path, ExpectSHA256: sum}, false, in.Keyed, in.Waiting))
		})
}

// change sends a call that changes a path of a workspace. again says that doing it twice does what
// doing it once does.
func (a *api) change(ctx context.Context, id protocol.SessionID, place string, payload protocol.Payload, again bool, key Keyed, wait Waiting) (*CallState, error) {
	resource, err := protocol.SandboxKey(string(id)).Join(place)
	if err != nil {
		return nil, ofRequest(http.StatusUnprocessableEntity, "path: "+err.Error())
	}
	call, err := a.call(ctx, &CallRequest{Session: id, Resources: []protocol.Use{{Key: resource, Access: protocol.Exclusive}}}, protocol.CallID(key.Key))
	if err != nil {
		return nil, err
	}
	call.Table, call.Arguments, call.Payload, call.As = nil, "", payload, a.writers()
	if again {
		call.Delivery = protocol.Idempotent
	}
	ref, err := a.Client.Submit(ctx, call)
	if err != nil {
		return nil, err
	}
	if wait.Wait == 0 {
		return &CallState{SessionID: ref.SessionID, CallID: ref.ID, State: "accepted"}, nil
	}
	return a.state(ctx, ref, milliseconds(wait.Wait))
}

// writers are the tools that write a file: writing one over HTTP is the same act, so the rules
// about all of them hold.
func (a *api) writers() (names []string) {
	if a.Table != nil {
		table := a.Table()
		for _, name := range table.Names() {
			tool, _ := table.Lookup(name)
			if slices.ContainsFunc(tool.Returns, func(v protocol.Value) bool { _, is := v.(protocol.FilesWriteResult); return is }) {
				names = append(names, name)
			}
		}
	}
	if names == nil {
		names = []string{"write"}
	}
	return names
}

// problemWriter sends problems where [http.ServeContent] answers with texts.
type problemWriter struct {
	http.ResponseWriter

	refused bool
}

// WriteHeader implements [http.ResponseWriter].
func (w *problemWriter) WriteHeader(status int) {
	if w.refused = status >= http.StatusBadRequest; w.refused {
		refuse(w.ResponseWriter, status, "Range: the file has no such bytes")
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [io.Writer].
func (w *problemWriter) Write(p []byte) (int, error) {
	if w.refused {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// archive registers operations on all files.
func (a *api) archive(tag string) {
	types := map[string]string{session.FormatTar: "application/x-tar", session.FormatGzip: "application/gzip", session.FormatZstd: "application/zstd"}
	all := map[string]*huma.MediaType{}
	for _, kind := range types {
		all[kind] = binary(kind)[kind]
	}
	out := func(op *huma.Operation) {
		op.Responses = map[string]*huma.Response{"200": {Description: "The archive. One that cannot be sent to its end ends with an error of the connection.", Content: all}}
	}
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/archive", "get-archive", tag, "Get the files of a session's workspace as an archive", out),
		func(ctx context.Context, in *struct {
			SessionPath
			AtCall
			Format string `query:"format" enum:"tar,tar.gz,tar.zst" default:"tar.gz" doc:"Format of the archive."`
		},
		) (*huma.StreamResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, maxWait) // what is sent then takes longer
			defer cancel()
			archive, err := a.of(ctx, in.Session).Archive(ctx, in.Session, in.At)
			if err != nil {
				return nil, problem(err)
			}
			return &huma.StreamResponse{Body: func(out huma.Context) { //nolint:contextcheck // it has that of the request
				out.SetHeader("Content-Type", types[in.Format])
				if archive.Write(out.Context(), out.BodyWriter(), in.Format) != nil {
					panic(http.ErrAbortHandler) // the client must not take it for a whole one
				}
			}}, nil
		})
	in := func(op *huma.Operation) {
		accepted(op)
		op.RequestBody = &huma.RequestBody{Required: true, Content: all}
	}
	huma.Register(a.huma,
		operation(http.MethodPut, "/sessions/{session}/archive", "unpack-archive", tag, "Unpack an archive into a session's workspace, as a call: all of it or nothing", in),
		func(ctx context.Context, in *struct {
			SessionPath
			Path string `query:"path" maxLength:"4096" doc:"Directory of the workspace that gets the files, over those that it has. Default: the workspace."`
			Keyed
			Waiting
			streamedBody
		},
		) (*answer[*CallState], error) {
			dir, refused := modelpath.Path(in.Path)
			if refused != nil {
				return nil, ofRequest(http.StatusUnprocessableEntity, "path: "+refused.Message)
			}
			payload, err := a.of(ctx, in.Session).Pack(ctx, in.Session, in.body, dir)
			if err != nil {
				return nil, ofBody(err)
			}
			return answered(a.change(ctx, in.Session, dir, payload, true, in.Keyed, in.Waiting))
		})
}

// streamedBody is the body of a request, which is read as it comes.
type streamedBody struct{ body io.Reader }

// Resolve implements [huma.Resolver].
func (b *streamedBody) Resolve(ctx huma.Context) []error {
	r, w := humago.Unwrap(ctx)
	b.body = &slowBody{http.MaxBytesReader(w, r.Body, MaxArchive), http.NewResponseController(w), false}
	return nil
}

// slowBody is a body that may arrive for longer than others.
type slowBody struct {
	io.Reader

	control *http.ResponseController
	begun   bool
}

// Read implements [io.Reader].
func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if !b.begun && err == nil { // behind the bound of [access.Serve]
		b.begun = true
		_ = b.control.SetReadDeadline(time.Now().Add(archiveTime)) // where it is no connection there is none
	}
	return n, err
}

// ofBody is the problem of an archive that did not come, or was refused.
func ofBody(err error) error {
	switch large, is := errors.AsType[*http.MaxBytesError](err); {
	case is:
		return ofRequest(http.StatusRequestEntityTooLarge, "the body has more than "+strconv.FormatInt(large.Limit, 10)+" bytes")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ofRequest(http.StatusRequestTimeout, "the body did not arrive within "+archiveTime.String())
	default:
		return problem(err)
	}
}

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
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/files", "list-files", tag, "List the files of a session's workspace", bounded),
		func(ctx context.Context, in *struct {
			SessionPath
			AtCall
		},
		) (*answer[FileList], error) {
			list, err := a.of(ctx, in.Session).Files(ctx, in.Session, in.At)
			return answered(FileList{orEmpty(list)}, err)
		})
	a.file(tag)
	a.archive(tag)
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/changes", "list-changes", tag, "List which calls changed which files", bounded),
		func(ctx context.Context, in *SessionPath) (*answer[ChangeList], error) {
			list, err := a.of(ctx, in.Session).Changes(ctx, in.Session)
			return answered(ChangeList{orEmpty(list)}, err)
		})
	huma.Register(a.huma,
		operation(http.MethodGet, "/sessions/{session}/diff", "get-diff", tag, "Get what a call changed, or the whole session, as a unified diff", bounded),
		func(ctx context.Context, in *struct {
			SessionPath
			Call protocol.CallID `query:"call" maxLength:"64" doc:"Call whose changes are shown. Default: all of the session."`
		},
		) (*answer[Diff], error) {
			text, err := a.of(ctx, in.Session).Diff(ctx, in.Session, in.Call)
			return answered(Diff{text}, err)
		})
	huma.Register(a.huma, operation(http.MethodGet, "/sessions/{session}/compare", "compare-sessions", tag, "Compare the files of two sessions as a unified diff", bounded),
		func(ctx context.Context, in *struct {
			SessionPath
			Other protocol.SessionID `query:"other" required:"true" maxLength:"64" doc:"The other session."`
		},
		) (*answer[Diff], error) {
			text, err := a.of(ctx, in.Session).Compare(ctx, in.Session, in.Other)
			return answered(Diff{text}, err)
		})
}

// Diff is a unified diff.
type Diff struct {
	Diff string `json:"diff"`
}
