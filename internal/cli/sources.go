package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

// sources give flags that are neither on the command line nor set by a variable their values: of
// the context, then of the project's file, then of the user's.
type sources struct {
	p       Program
	look    bool        // leave out what is not trusted, instead of an error or a question
	list    []*settings // first come first
	origins map[*kong.Flag]string
	notes   []string // what was left out
}

// Names of flags that the sources read.
const (
	flagNats    = "nats"
	flagContext = "context"
)

// noContext is the name that stands for no context at all.
const noContext = "none"

// Validate implements [kong.Resolver].
func (s *sources) Validate(*kong.Application) error { return nil }

// Resolve implements [kong.Resolver].
func (s *sources) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if envName(flag) != "" {
		return nil, nil //nolint:nilnil // kong's word for none
	}
	for _, from := range s.list {
		if value, is := from.values[flag.Name]; is {
			s.origins[flag] = from.at(flag.Name)
			return value.value, nil
		}
	}
	return nil, nil //nolint:nilnil // kong's word for none
}

// load reads the sources for the selected command, once: kong calls it for each word of that.
func (s *sources) load(kctx *kong.Context) error {
	if s.origins != nil {
		return nil
	}
	s.origins = map[*kong.Flag]string{}
	r := &reader{app: kctx.Model, files: s.p.Files}
	for _, at := range kctx.Path {
		if at.Command != nil && r.command == nil {
			r.command = at.Command
		}
	}
	user, project, err := s.files(kctx, r)
	if err != nil {
		return err
	}
	context, err := s.context(kctx, r, user, project)
	if err != nil {
		return err
	}
	for _, from := range []*settings{context, project, user} {
		if from != nil {
			s.list = append(s.list, from)
		}
	}
	return nil
}

// files reads the file of the user, and that of the project if it is trusted.
func (s *sources) files(kctx *kong.Context, r *reader) (user, project *settings, err error) {
	if !s.p.Files.User || r.command != nil && r.command.Tag.Get(filesTag) == noFiles {
		return nil, nil, nil
	}
	if path, err := ConfigDir("config.yaml"); err == nil && exists(path) {
		if user, err = r.read(path, "user"); err != nil {
			return nil, nil, err
		}
		if at, is := user.values[flagContext]; is {
			return nil, nil, Usagef("%s:%d: context: choose it with coordinator context use", path, at.line)
		}
	}
	off, _ := given(kctx, "no-project-config")
	if !s.p.Files.Project || slices.Contains([]string{"true", "1", "yes"}, strings.ToLower(off)) { // as kong has it
		return user, nil, nil
	}
	workspace, _ := given(kctx, "workspace")
	path := findProject(workspace)
	if path == "" {
		return user, nil, nil
	}
	if project, err = r.read(path, "project"); err != nil {
		return nil, nil, err
	}
	trusted, err := s.trusted(kctx, project)
	if !trusted {
		project = nil
	}
	return user, project, err
}

// trusted reports whether the person trusts a project's file. Without an effect it need not be.
func (s *sources) trusted(kctx *kong.Context, project *settings) (bool, error) {
	var sets, keys []string
	for _, flag := range kctx.Flags() {
		if _, origin := given(kctx, flag.Name); origin != "" {
			continue
		}
		if value, is := project.values[flag.Name]; is {
			sets, keys = append(sets, fmt.Sprintf("%s: %v", flag.Name, printable(flag.Name, value.value))), append(keys, flag.Name)
		}
	}
	if len(sets) == 0 {
		return true, nil
	}
	mark, err := trustOf(project)
	if err != nil || mark.given() {
		return err == nil, err
	}
	if s.look {
		s.notes = append(s.notes, project.path+" is not trusted and has no effect: coordinator config trust")
		return false, nil
	}
	stdin, isFile := s.p.Stdin.(*os.File)
	if !isFile || !term.IsTerminal(int(stdin.Fd())) || !term.IsTerminal(int(s.p.Stderr.Fd())) {
		return false, Usagef("%s is not trusted as it is now, and sets %s: read it, then trust it with \"coordinator config trust\", or ignore it with --no-project-config",
			project.path, strings.Join(keys, ", "))
	}
	_, _ = fmt.Fprintf(s.p.Stderr, "%s sets for this command:\n", prose.Visible(project.path))
	for _, line := range sets {
		_, _ = fmt.Fprintln(s.p.Stderr, "  "+strings.ReplaceAll(prose.Visible(line), "\n", `\n`))
	}
	_, _ = fmt.Fprint(s.p.Stderr, "Trust this file, as it is now? y: yes, anything else: run without it ")
	if answer := readLine(stdin); !slices.Contains([]string{"y", "yes"}, strings.ToLower(answer)) {
		return false, nil
	}
	return true, mark.give()
}

// readLine reads a line and no more, which the command may want.
func readLine(r io.Reader) string {
	var line []byte
	for one := make([]byte, 1); ; {
		if n, err := r.Read(one); n == 0 || err != nil || one[0] == '\n' {
			return strings.TrimSpace(string(line))
		}
		line = append(line, one[0])
	}
}

// context reads the context of a command: the one that is named, or else the one in use unless
// something says to which servers to connect.
func (s *sources) context(kctx *kong.Context, r *reader, user, project *settings) (*settings, error) {
	if find(kctx, flagContext) == nil {
		return nil, nil //nolint:nilnil // the command has no connection
	}
	name, origin := given(kctx, flagContext)
	if project != nil && origin == "" {
		if value, is := project.values[flagContext]; is {
			name = fmt.Sprint(value.value)
		}
	}
	if name == "" {
		if _, here := given(kctx, flagNats); here != "" {
			return nil, nil //nolint:nilnil // the one in use is for other servers
		}
		for _, from := range []*settings{user, project} {
			if from != nil && from.values[flagNats].value != nil {
				return nil, nil //nolint:nilnil // the same
			}
		}
		name = ContextInUse()
	}
	if name == "" || name == noContext {
		return nil, nil //nolint:nilnil // none is wanted
	}
	return contextNamed(name, r.flags())
}

// Origins of values: the command line, or a variable, whose name follows.
const (
	originFlag = "flag"
	ofVariable = "the variable "
)

// given is the value of a flag on the command line or of its variable, as text, and which it is;
// "" without.
func given(kctx *kong.Context, name string) (value, origin string) {
	flag := find(kctx, name)
	if flag == nil {
		return "", ""
	}
	for _, at := range kctx.Path {
		if at.Flag == flag && !at.Resolved {
			return fmt.Sprint(kctx.FlagValue(flag)), originFlag
		}
	}
	if variable := envName(flag); variable != "" {
		return os.Getenv(variable), ofVariable + variable
	}
	return "", ""
}

// envName is the variable that sets a flag, unless it is on the command line; "" for none.
func envName(flag *kong.Flag) string {
	for _, name := range flag.Envs {
		if _, set := os.LookupEnv(name); set {
			return name
		}
	}
	return ""
}

// find is the flag of a name of the selected command; nil without.
func find(kctx *kong.Context, name string) *kong.Flag {
	for _, flag := range kctx.Flags() {
		if flag.Name == name {
			return flag
		}
	}
	return nil
}

// origin says what has set a flag: "flag", a variable, a file, or "" for its default.
func (s *sources) origin(kctx *kong.Context, flag *kong.Flag) string {
	_, origin := given(kctx, flag.Name)
	if origin == originFlag {
		return origin
	}
	return cmp.Or(s.origins[flag], origin)
}

// Setting is a flag with its value and what has set it.
type Setting struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
	From  string `json:"from"` // "flag", a variable, a place in a file, or "default"
}

// Settings are the flags of a command line as they would be in force, without secrets, and what was
// left out because it is not trusted. Nothing is checked beyond single values.
func Settings(p Program, grammar any, args []string) (all []Setting, notes []string, err error) {
	from := &sources{p: p, look: true}
	kctx, err := kong.Trace(newParser(p, grammar, from), args)
	if err == nil {
		err = errors.Join(kctx.Error, kctx.Reset(), from.load(kctx))
	}
	if err == nil {
		if err = kctx.Resolve(); err == nil {
			_, err = kctx.Apply()
		}
	}
	if err != nil {
		return nil, nil, Usagef("%v", from.explain(kctx, err))
	}
	if kctx.Selected() == nil {
		return nil, nil, Usagef("expected one of %s", commandNames(kctx.Model.Node))
	}
	return from.settings(kctx), from.notes, nil
}

// settings are the flags of the selected command, but for those that are only refused.
func (s *sources) settings(kctx *kong.Context) (all []Setting) {
	for _, flag := range kctx.Flags() {
		if flag.Name == "session" || !slices.Contains(perCommandLine(), flag.Name) && (!flag.Hidden || flag.HasDefault) {
			all = append(all, Setting{Name: flag.Name, Value: printable(flag.Name, flag.Target.Interface()), From: cmp.Or(s.origin(kctx, flag), "default")})
		}
	}
	return all
}

// findProject finds the file of the project that a directory is in ("" is the current directory):
// there or above, up to the root of its repository or below the home directory; "" without one.
// Outside of both only the directory itself counts, for others may write above it.
func findProject(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	home, _ := os.UserHomeDir() // "" is above nothing
	found, bounded := "", false
	for at := dir; at != home; at = filepath.Dir(at) {
		if path := filepath.Join(at, ProjectFile); found == "" && exists(path) {
			found = path
		}
		if exists(filepath.Join(at, ".git")) {
			bounded = true
			break
		}
		if filepath.Dir(at) == at {
			break
		}
		bounded = filepath.Dir(at) == home
	}
	if !bounded && filepath.Dir(found) != dir {
		return ""
	}
	return found
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
