package gitguard

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// Finding is something that a person's git runs, or does not read, because of a file.
type Finding struct {
	// Path is the file: relative to the directory that was looked at, or absolute outside of it.
	Path string `json:"path"`
	// What says what git makes of it, in a few words.
	What string `json:"what"`
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s", printable(f.Path), f.What) }

// Watch is what git would have run in a directory when [Look] looked.
type Watch struct {
	dir    string
	git    *reader
	before map[Finding]string
}

// Look finds what git would run in a directory, around it and in what repositories are in it. A
// directory that cannot be looked at whole is an error. nil without an error means that there is no
// git on this host.
func Look(ctx context.Context, dir string) (*Watch, error) {
	git, err := newReader(dir)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // see the comment
	}
	before, err := runnable(ctx, dir, git)
	if err != nil {
		return nil, err
	}
	return &Watch{dir: dir, git: git, before: before}, nil
}

// Findings are what git would run by now and would not have run when [Look] looked, sorted; a nil
// Watch finds nothing. Nothing that can change the directory should run any more.
func (w *Watch) Findings(ctx context.Context) ([]Finding, error) {
	if w == nil {
		return nil, nil
	}
	after, err := runnable(ctx, w.dir, w.git)
	if err != nil {
		return nil, err
	}
	var all []Finding
	for finding, content := range after {
		if was, known := w.before[finding]; !known || was != content {
			all = append(all, finding)
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.What, b.What)) })
	return all, nil
}

// survey collects what git would run. The value of a finding is the content of its file, in short.
type survey struct {
	*found

	runs    map[Finding]string
	drivers map[string]bool // attributes that have a program
}

func runnable(ctx context.Context, dir string, git *reader) (map[Finding]string, error) {
	f, err := find(ctx, dir, git)
	if err != nil {
		return nil, err
	}
	s := &survey{found: f, runs: map[Finding]string{}, drivers: map[string]bool{}}
	for _, r := range f.repositories {
		settings, err := s.settings(ctx, &r)
		switch {
		case errors.Is(err, errRefused):
			s.add(cmp.Or(r.gitDir, r.dir), "a repository that git cannot read", "")
		case err != nil:
			return nil, err
		default:
			s.runBy(&r, settings)
		}
	}
	if len(f.repositories) == 0 { // the person's settings may name files here for all repositories
		s.runBy(&repository{dir: f.dir}, f.person)
	}
	for _, file := range f.attributes {
		s.attributesOf(file)
	}
	return s.runs, nil
}

func (s *survey) add(path, what, content string) {
	s.runs[Finding{Path: s.name(path), What: what}] = content
}

// runBy collects what git runs in a repository with these settings.
func (s *survey) runBy(r *repository, settings []setting) {
	hooks := []string{filepath.Join(r.common, "hooks")}
	for _, set := range settings {
		if attribute, is := driver(set.key); is {
			s.drivers[attribute] = true
		}
		if set.key == "core.hookspath" {
			hooks = append(hooks, hookDirs(r, set.value)...)
		}
		_, here := s.inside(set.origin)
		if (set.own || here) && s.runsBy(r, set) {
			s.add(set.origin, fmt.Sprintf("%s = %s", set.key, printable(set.value)), "")
		}
		for _, program := range s.programs(r, set) {
			s.add(program, "a program of "+set.key, digest(program))
		}
	}
	for _, dir := range hooks {
		s.hooks(dir)
	}
	for _, dir := range slices.Compact([]string{r.gitDir, r.common}) {
		s.aside(dir)
	}
}

// runsBy reports whether git may run something because of a setting of a repository.
func (s *survey) runsBy(r *repository, set setting) bool {
	return !harmless(set.key, set.value) && (set.key != "core.worktree" || !s.mayWrite(r, set.value))
}

// programs are the files of the directory that a setting names and that may be run.
func (s *survey) programs(r *repository, set setting) (files []string) {
	if harmless(set.key, set.value) {
		return nil
	}
	for _, word := range words(set.value) {
		path := absolute(r.dir, word)
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || !strings.Contains(word, "/") && info.Mode()&0o111 == 0 {
			continue
		}
		if _, here := s.inside(path); here {
			files = append(files, path)
		}
	}
	return files
}

// mayWrite reports whether a repository may have its files in a place, as those of submodules are
// told where: in the directory, where commands can write, too, and not where git finds hooks.
func (s *survey) mayWrite(r *repository, place string) bool {
	at := followed(absolute(r.gitDir, place))
	return system.Within(s.dir, at) && !slices.ContainsFunc(s.gitDirs, func(dir string) bool { return system.Within(dir, at) })
}

// followed is a path without symbolic links, as far as it exists.
func followed(path string) string {
	if there, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
		return cmp.Or(there, path)
	}
	if _, err := os.Lstat(path); err == nil { // a link to what is not there
		return ""
	}
	return filepath.Join(followed(filepath.Dir(path)), filepath.Base(path))
}

// hooks collects the programs of a directory of hooks.
func (s *survey) hooks(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil { // there are none; [find] has refused one in the directory that cannot be listed
		return
	}
	for _, entry := range entries {
		if path := filepath.Join(dir, entry.Name()); runsIn(dir, entry.Name()) {
			s.add(path, "a hook", digest(path))
		}
	}
}

// maxAttributes bounds a file of attributes, as git does.
const maxAttributes = 100 << 20

// attributesOf collects the drivers with a program that a file of attributes gives files to.
func (s *survey) attributesOf(path string) {
	file, err := regular.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, maxAttributes))
	lines.Buffer(nil, maxAttributes) // a line, too, may be as long
	for lines.Scan() {
		for word := range strings.FieldsSeq(lines.Text()) {
			if s.drivers[word] {
				s.add(path, "uses "+word, "")
			}
		}
	}
}

// maxProgram bounds how much of a program is compared.
const maxProgram = 64 << 20

// digest stands for the content of a file; "" when it cannot be read.
func digest(path string) string {
	file, err := regular.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(file, maxProgram)); err != nil {
		return ""
	}
	return string(sum.Sum(nil))
}

// maxShown is how many bytes of a setting are shown.
const maxShown = 200

// printable is text on one line of a terminal.
func printable(text string) string { return prose.OneLine(prose.Cut(text, maxShown)) }

// Report shows a person what a session has left for git to run in a directory, and sets aside what
// new repositories have it run. It alerts also where that cannot be done.
type Report struct {
	dir   string
	watch *Watch // nil without a directory, or git
	aside *Aside // likewise
	alert func(string)
	last  []Finding // of the last turn of a conversation
}

// NewReport looks at a directory, before the session can change it; "" is none. It completes, and
// shows, what sessions have left whose processes were killed. A directory that it cannot look at
// whole is an error: the session must not begin there. keep sets nothing aside.
func NewReport(ctx context.Context, dir string, keep bool, alert func(string)) (r *Report, err error) {
	r = &Report{dir: dir, alert: alert}
	if dir == "" {
		return r, nil
	}
	earlier, err := complete(ctx, dir, true)
	if len(earlier.moved) > 0 {
		alert(setAside("a session whose process was killed", dir, earlier.moved))
	}
	r.Alert(earlier.findings)
	if err == nil {
		r.watch, err = Look(ctx, dir)
	}
	if err == nil {
		r.aside, err = newAside(ctx, dir, r.watch, keep)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find out what git would run in %s: %w", dir, err)
	}
	return r, nil
}

// Findings returns what git would run now and would not have run before, and what was set aside,
// also when ctx has ended. Among it is what sessions have left whose processes were killed
// meanwhile.
func (r *Report) Findings(ctx context.Context) []Finding {
	if r.aside == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	earlier, err := complete(ctx, r.dir, true)
	_, moveErr := r.aside.Move(ctx)
	all, findErr := r.watch.Findings(ctx)
	if err = errors.Join(err, moveErr, findErr); err != nil {
		r.unknown(err)
	}
	for _, finding := range earlier.findings {
		if !slices.Contains(all, finding) {
			all = append(all, finding)
		}
	}
	return all
}

// Close ends the session. Nothing of it runs any more. After an error the next command that uses
// the directory completes the setting aside.
func (r *Report) Close(ctx context.Context) {
	if r == nil {
		return
	}
	moved, err := r.aside.Close(context.WithoutCancel(ctx))
	if len(moved) > 0 {
		r.alert(setAside("the session", r.dir, moved))
	}
	if err != nil {
		r.unknown(err)
	}
}

func setAside(by, dir string, moved []string) string {
	return fmt.Sprintf("git would run programs because of what %s has left in %s, so it was set aside, in files that end in %s: %s",
		by, dir, asideSuffix, strings.Join(moved[:min(len(moved), maxAlerted)], ", "))
}

func (r *Report) unknown(err error) {
	r.alert(fmt.Sprintf("it is unknown what git would run in %s; look at .git and its settings before you use git there: %v", r.dir, err))
}

// maxAlerted is the number of findings in an alert.
const maxAlerted = 20

// Alert shows findings to the person, one a line.
func (r *Report) Alert(all []Finding) {
	if len(all) == 0 {
		return
	}
	lines := make([]string, 0, len(all))
	for _, finding := range all[:min(len(all), maxAlerted)] {
		lines = append(lines, finding.String())
	}
	if rest := len(all) - maxAlerted; rest > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", rest))
	}
	r.alert("before you use git or an editor in " + r.dir + ", look at what the session has left for git to run:\n" + strings.Join(lines, "\n"))
}

// AlertNew shows findings to the person after a turn, if they have changed: the person may use
// git before the conversation ends.
func (r *Report) AlertNew(ctx context.Context) {
	if all := r.Findings(ctx); !slices.Equal(all, r.last) {
		r.last = all
		r.Alert(all)
	}
}
