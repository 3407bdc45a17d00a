package webui

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	texts "github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxFiles is how many entries of a directory, and how many changed files, a page lists; maxDiff
// bounds a difference, in bytes, and fileLines how many lines of a file a page shows.
const (
	maxFiles  = 500
	maxDiff   = 512 << 10
	fileLines = 2000
)

// filesPage is the workspace of a session after a call.
type filesPage struct {
	*sessionPage

	At       protocol.CallID
	From     protocol.CallID
	Dir      string
	Entries  []entry
	LeftOut  int
	Changes  []report.Change
	Changed  []report.File // by the last turn
	Compared bool
	Diff     []fileDiff
	DiffCut  bool
	With     protocol.SessionID // that is compared

	Path   string
	Lines  []string
	First  int // number of the first line
	Next   int // line at which the next page begins; 0 is none
	Prev   int
	Binary int64
	Size   int64
}

// entry is a file or a directory of a listed directory.
type entry struct {
	report.File

	Name  string
	Files int // below a directory
}

// fileDiff is what differs in one file.
type fileDiff struct {
	Head  string
	Lines []diffLine
}

// addr is an address of the files, at the same state.
func (p *filesPage) addr(page string, values ...string) string {
	return queried(sessionPath(p.Session, page), append(values, "at", string(p.At))...)
}

// InDir is the address of a directory, FileAt that of a line of a file.
func (p *filesPage) InDir(dir string) string { return p.addr("files", "dir", dir) }

// OfFile is the address of a file.
func (p *filesPage) OfFile(name string) string { return p.addr("file", "path", name) }

// LineAt is the address of a page of the file that is shown.
func (p *filesPage) LineAt(line int) string {
	return p.addr("file", "path", p.Path, "line", strconv.Itoa(line))
}

// Up is the directory above.
func (p *filesPage) Up() string { return strings.TrimPrefix(path.Dir(p.Dir), ".") }

// Label names a call for a list of states.
func (p *filesPage) Label(id protocol.CallID) string {
	if of := p.call(id); of != nil {
		return fmt.Sprintf("turn %d: %s", of.Turn, about(of.Tool, of.Arguments))
	}
	return string(id)
}

// filePages registers the pages of files.
func (u *ui) filePages() {
	u.page("GET /sessions/{session}/files", u.sessionFiles)
	u.page("GET /sessions/{session}/files/count", u.filesCount)
	u.page("GET /sessions/{session}/file", u.sessionFile)
	u.page("GET /sessions/{session}/compare", u.compare)
}

// openFiles reads what the pages of files share.
func (u *ui) openFiles(ctx context.Context, r *http.Request) (*filesPage, fleet.Sessions, error) {
	p, err := u.load(ctx, r)
	if err != nil {
		return nil, fleet.Sessions{}, err
	}
	p.Tab = "files"
	query := r.URL.Query()
	return &filesPage{
		sessionPage: p, At: protocol.CallID(query.Get("at")), From: protocol.CallID(query.Get("from")),
		Dir: strings.Trim(path.Clean("/"+query.Get("dir")), "/"), Path: query.Get("path"),
	}, u.of(ctx, p.Session), nil
}

// sessionFiles lists a directory of a session's workspace, and what differs between two states.
func (u *ui) sessionFiles(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	f, of, err := u.openFiles(ctx, r)
	if err != nil {
		return err
	}
	all, err := of.Files(ctx, f.Session, f.At)
	if errors.Is(err, fleet.ErrNotFound) && f.At == "" {
		u.showSession(w, r, f.sessionPage, "files", f) // it has none yet
		return nil
	}
	if err != nil {
		return err
	}
	f.list(all)
	if f.Changes, err = of.Changes(ctx, f.Session); err != nil {
		return err
	}
	var text string
	switch {
	case f.From != "":
		text, err = of.Between(ctx, f.Session, f.From, f.At)
	case f.At != "":
		text, err = of.Diff(ctx, f.Session, f.At)
	case f.Dir == "":
		f.Changed, err = of.ChangedFiles(ctx, f.Session)
		f.Changed = f.Changed[:min(len(f.Changed), maxFiles)]
	}
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	f.Compared = f.From != "" || f.At != ""
	f.differences(text)
	u.showSession(w, r, f.sessionPage, "files", f)
	return nil
}

// list lists what is directly in the directory, directories first.
func (p *filesPage) list(all []report.File) {
	below := ""
	if p.Dir != "" {
		below = p.Dir + "/"
	}
	dirs := map[string]*entry{}
	for _, file := range all {
		rest, in := strings.CutPrefix(file.Path, below)
		name, _, deeper := strings.Cut(rest, "/")
		if !in || name == "" {
			continue
		}
		if !deeper && file.Type != protocol.TypeDir {
			p.Entries = append(p.Entries, entry{File: file, Name: name})
			continue
		}
		dir := dirs[name]
		if dir == nil {
			dir = &entry{File: report.File{Path: below + name, Type: protocol.TypeDir}, Name: name}
			dirs[name] = dir
		}
		if deeper {
			dir.Files++
		} else {
			dir.Mode = file.Mode
		}
	}
	for _, dir := range dirs {
		p.Entries = append(p.Entries, *dir)
	}
	slices.SortFunc(p.Entries, func(a, b entry) int {
		if (a.Type == protocol.TypeDir) != (b.Type == protocol.TypeDir) {
			if a.Type == protocol.TypeDir {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	p.LeftOut = max(0, len(p.Entries)-maxFiles)
	p.Entries = p.Entries[:len(p.Entries)-p.LeftOut]
}

// differences splits a difference of workspaces into files.
func (p *filesPage) differences(text string) {
	if p.DiffCut = len(text) > maxDiff; p.DiffCut {
		text = text[:strings.LastIndexByte(text[:maxDiff], '\n')+1]
	}
	for line := range strings.Lines(text) {
		if texts.IsDiffHead(line) || len(p.Diff) == 0 {
			p.Diff = append(p.Diff, fileDiff{Head: strings.TrimSuffix(line, "\n")})
			continue
		}
		last := &p.Diff[len(p.Diff)-1]
		last.Lines = append(last.Lines, diffOf(line)...)
	}
}

// filesCount shows how many files the last turn has changed.
func (u *ui) filesCount(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	changed, err := u.of(ctx, idOf(r)).ChangedFiles(ctx, idOf(r))
	if err != nil && !errors.Is(err, fleet.ErrNotFound) {
		return err
	}
	u.write(w, r, http.StatusOK, "files", "count", view{Data: len(changed)})
	return nil
}

// sessionFile shows a file, with the numbers of its lines.
func (u *ui) sessionFile(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	f, of, err := u.openFiles(ctx, r)
	if err != nil {
		return err
	}
	file, err := of.File(ctx, f.Session, f.Path, f.At)
	if err != nil {
		return err
	}
	f.Size = file.Size
	if r.URL.Query().Has("file") {
		asFile(w, "application/octet-stream", path.Base(f.Path))
		_, _ = io.Copy(w, file.Open(r.Context())) // the browser has gone
		return nil
	}
	line, _ := strconv.Atoi(r.URL.Query().Get("line"))
	if err := f.read(file.Open(ctx), max(1, line)); err != nil {
		return fmt.Errorf("file %q: %w", f.Path, err)
	}
	u.showSession(w, r, f.sessionPage, "files", f)
	return nil
}

// read reads lines of a file. Of a long line, the page has the first bytes.
func (p *filesPage) read(content io.Reader, first int) error {
	lines := bufio.NewReaderSize(content, maxLine)
	p.First, p.Prev = first, max(0, first-fileLines)
	if first > 1 && p.Prev == 0 {
		p.Prev = 1
	}
	size, skipped := 0, 0
	for n, begins := 1, true; ; {
		piece, err := lines.ReadSlice('\n')
		if bytes.IndexByte(piece, 0) >= 0 && n == 1 {
			p.Binary, p.Lines = p.Size, nil
			return nil
		}
		switch {
		case n < first || len(piece) == 0:
		case len(p.Lines) == fileLines || size > maxText:
			p.Next = n
			return nil
		case begins:
			p.Lines = append(p.Lines, strings.ToValidUTF8(strings.TrimSuffix(string(piece), "\n"), "�"))
			size += len(piece)
		default:
			skipped += len(piece)
		}
		if begins = !errors.Is(err, bufio.ErrBufferFull); begins {
			if n++; skipped > 0 {
				p.Lines[len(p.Lines)-1] += fmt.Sprintf(" … %d bytes more", skipped)
				skipped = 0
			}
		}
		if err != nil && begins {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// compare shows what differs between the workspaces of two sessions.
func (u *ui) compare(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	f, of, err := u.openFiles(ctx, r)
	if err != nil {
		return err
	}
	f.With, f.Tab = protocol.SessionID(strings.TrimSpace(r.URL.Query().Get("with"))), "details"
	text, err := of.Compare(ctx, f.Session, f.With)
	if err != nil {
		return err
	}
	f.differences(text)
	u.showSession(w, r, f.sessionPage, "compare", f)
	return nil
}
