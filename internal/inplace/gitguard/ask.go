package gitguard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/system"
)

// Bounds of one query to git.
const (
	askTime   = 20 * time.Second
	maxAnswer = 256 << 20
)

var (
	// errNoGit is the error of a host without git.
	errNoGit = errors.New("git is not installed")
	// errRefused means that git itself refuses a file, so that it runs nothing because of it.
	errRefused = errors.New("git cannot read it")
)

// Program finds a program of the PATH that is not in a directory, where commands could have put it.
// "" excludes no directory.
func Program(name, dir string) (string, error) {
	for _, entry := range filepath.SplitList(Path(dir)) {
		found, err := exec.LookPath(filepath.Join(entry, name))
		if err == nil && !in(dir, found) {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s: %w outside of the workspace", name, exec.ErrNotFound)
}

// Path is the PATH without relative entries and those in a directory; "" is no directory.
func Path(dir string) string {
	entries := slices.DeleteFunc(filepath.SplitList(os.Getenv("PATH")), func(entry string) bool { return !filepath.IsAbs(entry) || in(dir, entry) })
	return strings.Join(entries, string(filepath.ListSeparator))
}

// in reports whether a path leads into a directory, also by another name of it, as on file systems
// without case; "" is no directory.
func in(dir, path string) bool {
	if dir == "" {
		return false
	}
	info, err := os.Stat(dir)
	return system.Within(followed(dir), followed(path)) || err == nil && around(followed(path), info)
}

// reader has git parse single files. git runs in a directory of this process's own, which has
// copies of the files and nothing else. So it enters no repository of a session, and opens no file
// that a session can write: nothing names a program, a server or another file to it. It is safe for
// concurrent use.
type reader struct {
	program string

	mu     sync.Mutex
	parsed map[[sha256.Size]byte][]entry

	walking sync.Mutex        // guards what follows
	lists   map[string]listed // directories of listsOf, as they were listed last
	listsOf string
	system  *string // the settings of the system; nil if not looked for, "" for none
}

// entry is a setting as it stands in a file: section and name in lower case.
type entry struct{ key, value string }

// newReader finds git outside of a directory that sessions write to.
func newReader(dir string) (*reader, error) {
	program, err := Program("git", dir)
	if err != nil {
		return nil, errNoGit
	}
	return &reader{program: program, parsed: map[[sha256.Size]byte][]entry{}}, nil
}

// ask runs git in a directory of this process's own. What it writes although it reports errors
// comes with an error.
func (r *reader) ask(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.program, append([]string{"--no-pager"}, args...)...) //nolint:gosec // git, in a directory of this process's own
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, env, time.Second
	var out, said answer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if exit, is := errors.AsType[*exec.ExitError](err); is && exit.ExitCode() > 0 {
		err = fmt.Errorf("%w: %w", errRefused, err)
	}
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(said.Bytes()))
	}
	if bytes.Contains(said.Bytes(), []byte("error: ")) {
		return out.Bytes(), fmt.Errorf("git %s: %w: %s", args[0], errRefused, bytes.TrimSpace(said.Bytes()))
	}
	return out.Bytes(), nil
}

// answer is what git writes, bounded.
type answer struct{ bytes.Buffer }

func (a *answer) Write(data []byte) (int, error) {
	if a.Len()+len(data) > maxAnswer {
		return 0, fmt.Errorf("git writes more than %d bytes", maxAnswer)
	}
	return a.Buffer.Write(data)
}

// environment is that of this process, without what sends git elsewhere, and of no repository.
func environment(keep ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, "GIT_") && !slices.Contains(keep, name)
	})
	return append(env, "GIT_DIR="+os.DevNull, "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
}

// neutral is the environment of a git that has nobody's settings.
func neutral(dir string, more ...string) []string {
	return append(environment(), append([]string{
		"HOME=" + dir, "XDG_CONFIG_HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_NO_LAZY_FETCH=1",
	}, more...)...)
}

// list parses settings; what they include is not read.
func (r *reader) list(ctx context.Context, content []byte) (all []entry, err error) {
	key := sha256.Sum256(content)
	r.mu.Lock()
	defer r.mu.Unlock()
	if all, known := r.parsed[key]; known {
		return all, nil
	}
	err = asFile(content, func(dir string) error {
		out, err := r.ask(ctx, dir, neutral(dir), "config", "-z", "--file", copyName, "--no-includes", "--list")
		for text := range strings.SplitSeq(string(out), "\x00") {
			if key, value, _ := strings.Cut(text, "\n"); key != "" {
				all = append(all, entry{key, value})
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(r.parsed) >= maxRepositories {
		clear(r.parsed)
	}
	r.parsed[key] = all
	return all, nil
}

// copyName is the file that [asFile] makes.
const copyName = "config"

// asFile has content as a file in a directory of this process's own.
func asFile(content []byte, use func(dir string) error) error {
	return inScratch(func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, copyName), content, 0o600); err != nil { //nolint:gosec // in a directory of this process's own
			return err
		}
		return use(dir)
	})
}

func inScratch(use func(dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "toolfleet-settings-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return use(dir)
}

func absolute(dir, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(dir, name)
}

// harmlessSections have settings that name no program, server or file to run, whatever they are.
var harmlessSections = []string{ //nolint:gochecknoglobals // a constant
	"advice", "apply", "author", "blame", "color", "column", "committer", "fsck", "index", "receive", "rerere", "stash", "status", "tag", "user",
	"versionsort", "worktree",
}

// harmlessNames are settings without a subsection, and harmlessOf those with one, by their section.
// What is not among them though it looks as if it belonged there: formats and options that can
// carry a command (rebase.instructionFormat, branch.*.mergeOptions), places that git writes to or
// copies from (core.worktree, gc.repackFilterTo, init.templateDir), servers (fetch.bundleURI).
var harmlessNames = map[string][]string{ //nolint:gochecknoglobals // a constant
	"branch": {"autosetupmerge", "autosetuprebase", "sort"},
	"clean":  {"requireforce"},
	"commit": {"cleanup", "gpgsign", "status", "verbose"},
	"core": {
		"abbrev", "autocrlf", "bare", "checkstat", "commentchar", "compression", "eol", "filemode", "hidedotfiles", "ignorecase",
		"ignorestat", "logallrefupdates", "longpaths", "precomposeunicode", "preloadindex", "quotepath",
		"repositoryformatversion", "safecrlf", "sharedrepository", "sparsecheckout", "sparsecheckoutcone", "splitindex", "symlinks",
		"trustctime", "untrackedcache", "whitespace",
	},
	"diff": {
		"algorithm", "colormoved", "context", "ignoresubmodules", "indentheuristic", "mnemonicprefix",
		"noprefix", "renamelimit", "renames", "submodule", "wserrorhighlight",
	},
	"extensions": {"compatobjectformat", "noop", "objectformat", "partialclone", "preciousobjects", "refstorage", "relativeworktrees", "worktreeconfig"},
	"feature":    {"experimental", "manyfiles"},
	"fetch": {
		"all", "fsckobjects", "negotiationalgorithm", "output", "parallel", "prune", "prunetags",
		"recursesubmodules", "showforcedupdates", "unpacklimit", "writecommitgraph",
	},
	"gc": {
		"aggressivedepth", "aggressivewindow", "auto", "autodetach", "autopacklimit", "bigpackthreshold", "cruftpacks", "logexpiry", "maxcruftsize",
		"packrefs", "pruneexpire", "reflogexpire", "reflogexpireunreachable", "rerereresolved", "rerereunresolved", "worktreepruneexpire", "writecommitgraph",
	},
	"init":        {"defaultbranch", "defaultobjectformat", "defaultrefformat"},
	"lfs":         {"repositoryformatversion"},
	"log":         {"abbrevcommit", "date", "decorate", "diffmerges", "follow", "initialdecorationset", "showroot", "showsignature"},
	"maintenance": {"auto", "autodetach", "strategy"},
	"merge":       {"autostash", "conflictstyle", "directoryrenames", "ff", "log", "renamelimit", "renames", "stat"},
	"pack": {
		"allowpackreuse", "compression", "depth", "deltacachelimit", "deltacachesize", "indexversion", "packsizelimit", "readreverseindex", "threads",
		"usebitmaps", "usepathwalk", "usesparse", "window", "windowmemory", "writebitmaphashcache", "writebitmaplookuptable", "writereverseindex",
	},
	"pull": {"autostash", "ff", "rebase"},
	"push": {"autosetupremote", "default", "followtags", "gpgsign", "negotiate", "recursesubmodules", "usebitmaps", "useforceifincludes"},
	"rebase": {
		"abbreviatecommands", "autosquash", "autostash", "backend", "forkpoint", "maxlabellength",
		"missingcommitscheck", "rebasemerges", "reschedulefailedexec", "stat", "updaterefs",
	},
	"submodule": {"active", "fetchjobs", "propagatebranches", "recurse"},
	"transfer":  {"advertisesid", "credentialsinurl", "fsckobjects", "hiderefs", "unpacklimit"},
}

var harmlessOf = map[string][]string{ //nolint:gochecknoglobals // a constant
	"branch":      {"description", "merge", "pushremote", "rebase", "remote"},
	"gc":          {"reflogexpire", "reflogexpireunreachable"},
	"lfs":         {"access"},
	"maintenance": {"enabled", "schedule"},
	"remote":      {"fetch", "mirror", "partialclonefilter", "promisor", "prune", "prunetags", "push", "pushurl", "skipdefaultupdate", "skipfetchall", "tagopt", "url"},
	"submodule":   {"active", "branch", "fetchrecursesubmodules", "ignore", "shallow", "update", "url"},
}

// remoteName is the name of a remote; "." is the repository itself.
var remoteName = regexp.MustCompile(`^(\.|[A-Za-z0-9_][A-Za-z0-9_.-]*)$`)

// storages are forms of settings that git takes for a place when they are others.
var storages = regexp.MustCompile(`^[a-z0-9]*$`)

// split takes the key of a setting apart.
func split(key string) (section, subsection, name string) {
	first, last := strings.IndexByte(key, '.'), strings.LastIndexByte(key, '.')
	if first < 0 {
		return key, "", ""
	}
	if first == last {
		return key[:first], "", key[last+1:]
	}
	return key[:first], key[first+1 : last], key[last+1:]
}

// harmless reports whether git runs nothing because of a setting, and sends nothing elsewhere. What
// is not known is not: git gets new settings with every version.
func harmless(key, value string) bool {
	section, subsection, name := split(key)
	switch {
	case slices.Contains(harmlessSections, section), name == "": // git knows no setting without a section
		return true
	case name == "url" || name == "pushurl":
		return (section == "remote" || section == "submodule") && harmlessURL(value)
	case section == "branch" && (name == "remote" || name == "pushremote"), key == "extensions.partialclone":
		return remoteName.MatchString(value) || harmlessURL(value) // a path, too, may stand for a remote
	case key == "extensions.refstorage":
		return storages.MatchString(value)
	case section == "submodule" && name == "update":
		return !strings.HasPrefix(strings.TrimSpace(value), "!")
	case subsection == "":
		return slices.Contains(harmlessNames[section], name)
	default:
		return slices.Contains(harmlessOf[section], name)
	}
}

// shortURL is git's short form of SSH, as in git@example.com:project.git.
var shortURL = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(@[A-Za-z0-9_][A-Za-z0-9_.-]*)?:[^:-][^:]*$`)

// harmlessURL reports whether git reaches a server by a URL and runs nothing for it on this host. A
// path is not: pushing to it runs hooks there.
func harmlessURL(text string) bool {
	if strings.Contains(text, "://") { // what has no host is a path, as file:///x, or another program's
		u, err := url.Parse(text)
		return err == nil && u.Host != "" && !strings.HasPrefix(u.Host, "-") && slices.Contains([]string{"https", "http", "ssh", "git"}, u.Scheme) &&
			(u.User == nil || !strings.HasPrefix(u.User.Username(), "-"))
	}
	return shortURL.MatchString(text)
}

// driver is the driver of attributes that a setting gives a program, such as filter=lfs.
func driver(key string) (attribute string, ok bool) {
	section, subsection, name := split(key)
	programs := map[string][]string{"filter": {"clean", "smudge", "process"}, "diff": {"command", "textconv"}, "merge": {"driver"}}[section]
	return section + "=" + subsection, subsection != "" && slices.Contains(programs, name)
}

// words are what may be names of programs in the value of a setting.
func words(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return strings.ContainsRune(" \t\n\"'`!;&|<>()$=", r) })
}
