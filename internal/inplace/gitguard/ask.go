package gitguard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
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
	return below(followed(dir), followed(path)) || err == nil && around(followed(path), info)
}

// below reports whether a path is a directory or in it.
func below(dir, path string) bool {
	name, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(name)
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
