package files

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/gitignore"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxDepth is how many directories deep a walk goes.
const maxDepth = 200

// errPrune, returned by a visit of a directory, keeps the walk out of it.
var errPrune = errors.New("not entered")

// walk visits what is below a directory, in the order of paths. It follows no
// symbolic links, and leaves out ".git", what ignore files exclude, and directories of packages and
// caches.
type walk struct {
	fs           *FS
	noIgnore     bool
	withPackages bool   // also enters directories of packages and caches
	named        string // a path below the start: directories on the way to it are entered
	// visit gets every entry but those left out, directories before their contents.
	visit func(ctx context.Context, at position) error
	// skip gets each directory that cannot be read.
	skip           func(name string)
	ignored        int      // entries excluded
	generated      int      // directories of packages and caches left out
	generatedPaths []string // the first of them
}

// generated are the names of directories whose contents programs fetch or make, and the file that
// such a directory has if others have the name, too.
var generated = map[string]string{ //nolint:gochecknoglobals // a constant table
	"node_modules": "", "bower_components": "", ".venv": "", "__pycache__": "", ".mypy_cache": "", ".pytest_cache": "", ".ruff_cache": "",
	".hypothesis": "", ".ipynb_checkpoints": "", ".tox": "", ".nox": "", ".eggs": "", ".cache": "", ".gradle": "", ".terraform": "", ".next": "", ".nuxt": "",
	".svelte-kit": "", ".parcel-cache": "", ".turbo": "", ".angular": "", ".dart_tool": "", ".nyc_output": "", ".pnpm-store": "", ".direnv": "",
	"venv": "pyvenv.cfg", "env": "pyvenv.cfg", "target": "CACHEDIR.TAG",
}

// isGenerated reports whether an entry of the directory at is left out because its contents are.
func (w *walk) isGenerated(at position, entry fs.DirEntry) bool {
	mark, listed := generated[entry.Name()]
	below := path.Join(at.below, entry.Name())
	if !listed || w.withPackages || !entry.IsDir() || system.Within(below, w.named) {
		return false
	}
	if mark == "" {
		return true
	}
	_, err := w.fs.root.Lstat(path.Join(at.name, entry.Name(), mark))
	return err == nil
}

// position is where a walk stands.
type position struct {
	name  string // relative to the workspace
	below string // relative to the start of the walk
	depth int    // 1 for what is in the start
	entry fs.DirEntry
	rules gitignore.Rules // for what is in it, when it is a directory
}

// from walks what is below the directory name. An unreadable start is an error, an
// unreadable directory further down is skipped.
func (w *walk) from(ctx context.Context, name string) error {
	var rules gitignore.Rules
	if !w.noIgnore {
		rules = w.fs.ignoresAbove(ctx, name)
	}
	return w.dir(ctx, position{name: name, rules: rules})
}

func (w *walk) dir(ctx context.Context, at position) error {
	entries, rules, err := w.entries(ctx, at)
	if err != nil {
		if at.depth == 0 || ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
			return err
		}
		w.skip(at.name)
		return nil
	}
	for _, entry := range entries {
		inside := position{
			name: path.Join(at.name, entry.Name()), below: path.Join(at.below, entry.Name()),
			depth: at.depth + 1, entry: entry, rules: rules,
		}
		if err := w.enter(ctx, inside); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) enter(ctx context.Context, at position) error {
	err := w.visit(ctx, at)
	switch {
	case errors.Is(err, errPrune):
		return nil
	case err != nil, !at.entry.IsDir():
		return err
	case at.depth >= maxDepth || len(at.name) > maxPath:
		w.skip(at.name)
		return nil
	default:
		return w.dir(ctx, at)
	}
}

// entries returns what a walk sees in a directory, and the rules that apply in it.
// They are sorted so that walking them visits paths in order: a directory stands
// where its path with a slash would.
func (w *walk) entries(ctx context.Context, at position) ([]fs.DirEntry, gitignore.Rules, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	dir, err := w.fs.openDir(at.name)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, nil, err
	}
	rules := at.rules
	if !w.noIgnore && hasIgnoreFile(entries) {
		rules = w.fs.withIgnoreFile(ctx, rules, at.name)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(walkKey(a), walkKey(b)) })
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
		if e.Name() == ".git" {
			return true
		}
		excluded := rules.Excludes(path.Join(at.name, e.Name()), e.IsDir())
		if excluded {
			w.ignored++
		} else if w.isGenerated(at, e) {
			w.generated++
			w.generatedPaths, excluded = addName(w.generatedPaths, path.Join(at.name, e.Name())), true
		}
		return excluded
	})
	return entries, rules, nil
}

func walkKey(entry fs.DirEntry) string {
	if entry.IsDir() {
		return entry.Name() + "/"
	}
	return entry.Name()
}

// defaultDepth is how many levels a tree has when none are asked for.
const defaultDepth = 3

func (f *FS) tree(ctx context.Context, name string, req protocol.FilesTree) (protocol.FilesTreeResult, error) {
	result := protocol.FilesTreeResult{Path: req.Path, Entries: []protocol.TreeEntry{}}
	depth := req.Depth
	if depth <= 0 {
		depth = defaultDepth
	}
	room := newRoom(req.Limit)
	w := &walk{fs: f, noIgnore: req.NoIgnore, withPackages: req.NoIgnore, skip: func(string) { result.Skipped++ }}
	w.visit = func(ctx context.Context, at position) error {
		result.Total++
		entry := protocol.TreeEntry{Path: at.name, Type: fileType(at.entry.Type())}
		if room.take(len(at.name)) {
			if info, err := at.entry.Info(); err == nil && entry.Type == protocol.TypeFile {
				entry.Size = info.Size()
			}
			if at.entry.IsDir() && at.depth >= depth {
				inside, _, err := w.entries(ctx, at)
				if err != nil {
					w.skip(at.name)
				}
				entry.Hidden = len(inside)
			}
			result.Entries = append(result.Entries, entry)
		}
		if at.entry.IsDir() && at.depth >= depth {
			return errPrune
		}
		return nil
	}
	err := w.from(ctx, name)
	result.Ignored, result.Generated, result.GeneratedPaths = w.ignored, w.generated, w.generatedPaths
	return result, err
}

// ignoreFile names the files whose rules exclude names.
const ignoreFile = ".gitignore"

// maxIgnoreFile is the size of the largest ignore file that is read, in bytes.
const maxIgnoreFile = 1 << 20

// ignoresAbove are the rules for the contents of the directory name, without those of its own
// ignore file. The rules above an excluded directory do not apply if the caller named it.
func (f *FS) ignoresAbove(ctx context.Context, name string) gitignore.Rules {
	var rules gitignore.Rules
	if name == "." {
		return nil
	}
	dir := "."
	for part := range strings.SplitSeq(name, "/") {
		if info, err := f.root.Lstat(path.Join(dir, ignoreFile)); err == nil && info.Mode().IsRegular() {
			rules = f.withIgnoreFile(ctx, rules, dir)
		}
		dir = path.Join(dir, part)
		if rules.Excludes(dir, true) {
			rules = nil
		}
	}
	return rules
}

// withIgnoreFile adds the rules of the ignore file in dir. A file that cannot be read has none.
func (f *FS) withIgnoreFile(ctx context.Context, above gitignore.Rules, dir string) gitignore.Rules {
	content, info, err := f.load(ctx, path.Join(dir, ignoreFile), os.O_RDONLY)
	if err != nil || info.Size() > maxIgnoreFile {
		return above
	}
	return above.With(dir, string(content))
}

// hasIgnoreFile reports whether a directory with these entries has rules of its own.
func hasIgnoreFile(entries []fs.DirEntry) bool {
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == ignoreFile && e.Type().IsRegular() })
}

// listChunk is how many entries are read at a time.
const listChunk = 4096

func (f *FS) list(ctx context.Context, name string, req protocol.FilesList) (result protocol.FilesListResult, err error) {
	dir, err := f.openDir(name)
	if err != nil {
		return result, err
	}
	defer dir.Close()
	result.Path, result.Entries = req.Path, []protocol.DirEntry{}
	for {
		if err := ctx.Err(); err != nil {
			return result, err
		}
		chunk, err := dir.ReadDir(listChunk)
		if errors.Is(err, io.EOF) {
			if result.Entries = fit(result.Entries); req.Follow {
				f.follow(name, result.Entries)
			}
			return result, nil
		}
		if err != nil {
			return result, err
		}
		result.Total += len(chunk)
		result.Entries = merge(result.Entries, chunk)
	}
}

// follow gives links in the directory name the type of what they lead to, if that may be read.
func (f *FS) follow(name string, entries []protocol.DirEntry) {
	for i := range entries {
		at := path.Join(name, entries[i].Name)
		if entries[i].Type != protocol.TypeSymlink || f.allow(at, reading) != nil {
			continue
		}
		if info, err := f.root.Stat(at); err == nil {
			entries[i].Type = fileType(info.Mode().Type())
		}
	}
}

// fit sorts entries by name, and keeps the first [isolation.MaxFound].
func fit(entries []protocol.DirEntry) []protocol.DirEntry {
	slices.SortFunc(entries, func(a, b protocol.DirEntry) int { return cmp.Compare(a.Name, b.Name) })
	return entries[:min(len(entries), isolation.MaxFound)]
}

// merge adds chunk to entries, and keeps the first ones, at most twice [isolation.MaxFound].
func merge(entries []protocol.DirEntry, chunk []fs.DirEntry) []protocol.DirEntry {
	for _, d := range chunk {
		entry := protocol.DirEntry{Name: d.Name(), Type: fileType(d.Type())}
		if info, err := d.Info(); err == nil && entry.Type == protocol.TypeFile {
			entry.Size = info.Size()
		}
		entries = append(entries, entry)
	}
	if len(entries) > 2*isolation.MaxFound {
		return fit(entries)
	}
	return entries
}

// openDir opens a directory and nothing else.
func (f *FS) openDir(name string) (*os.File, error) {
	info, err := f.root.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, protocol.Errorf(codes.NotDirectory, "%q is not a directory", name)
	}
	return f.root.OpenFile(name, os.O_RDONLY|system.NonBlock, 0)
}

func (f *FS) stat(ctx context.Context, req protocol.FilesExists) (protocol.FilesExistsResult, error) {
	reach, stat := func(p string) (string, error) { return f.reachEntry(p, reading) }, f.root.Lstat
	if req.Follow {
		reach, stat = func(p string) (string, error) { return f.reach(p, reading) }, f.root.Stat
	}
	name, err := reach(req.Path)
	switch {
	case req.Follow && isFault(err, codes.PathEscape):
		return protocol.FilesExistsResult{Path: req.Path}, nil
	case err != nil:
		return protocol.FilesExistsResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return protocol.FilesExistsResult{}, f.fault("stat", name, err)
	}
	info, err := stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), req.Follow && errors.Is(err, f.root.escape):
		return protocol.FilesExistsResult{Path: req.Path}, nil
	case err != nil:
		return protocol.FilesExistsResult{}, f.fault("stat", name, err)
	}
	result := protocol.FilesExistsResult{Path: req.Path, Exists: true, Type: fileType(info.Mode().Type())}
	if result.Type == protocol.TypeFile {
		result.Size = info.Size()
	}
	return result, nil
}

func fileType(mode fs.FileMode) protocol.FileType {
	switch mode {
	case 0:
		return protocol.TypeFile
	case fs.ModeDir:
		return protocol.TypeDir
	case fs.ModeSymlink:
		return protocol.TypeSymlink
	default:
		return protocol.TypeOther
	}
}

// OpenDir opens a directory of the workspace, for a command that is to start in it.
// The caller closes it. Expected failures are a *[protocol.Error].
func (f *FS) OpenDir(p string) (*os.File, error) {
	name, err := clean(f.root.Name(), p)
	if err != nil {
		return nil, err
	}
	dir, err := f.openDir(name)
	if err != nil {
		return nil, f.fault("open directory", name, err)
	}
	return dir, nil
}
