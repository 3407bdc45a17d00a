package gitguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// askTime bounds one question to git: an include can be a pipe without a writer.
const askTime = 20 * time.Second

// errNoGit is that of a host without git.
var errNoGit = errors.New("git is not installed")

// ask runs git in a directory so that it runs no other program. It trusts repositories of others,
// because it only reads.
func ask(ctx context.Context, dir string, args ...string) ([]byte, error) {
	program, err := exec.LookPath("git")
	if err != nil {
		return nil, errNoGit
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	safe := []string{"-c", "core.fsmonitor=false", "-c", "core.hooksPath=" + os.DevNull, "-c", "safe.directory=*", "--no-pager"}
	cmd := exec.CommandContext(ctx, program, append(safe, args...)...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, environment(), time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("git %s in %s: %w: %s", args[len(args)-1], dir, err, bytes.TrimSpace(said.Bytes()))
	}
	return out.Bytes(), nil
}

// environment is this process's without what would have git look elsewhere than a person's does.
func environment() []string {
	keep := []string{"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH"}
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, "GIT_") && !slices.Contains(keep, name)
	})
	return append(env, "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "LC_ALL=C")
}

// setting is one of git's settings and where it stands.
type setting struct {
	key    string // as git writes it: section and name in lower case
	value  string
	origin string // absolute path; "" when it is no file
	own    bool   // of the repository, not of the person
}

// settings are all that are in force in a repository.
func (r *repository) settings(ctx context.Context) ([]setting, error) {
	out, err := ask(ctx, r.dir, r.args("config", "--list", "--show-scope", "--show-origin", "-z")...)
	if err != nil {
		return nil, err
	}
	fields := strings.Split(string(out), "\x00")
	var all []setting
	for ; len(fields) >= 3; fields = fields[3:] {
		s := setting{own: fields[0] == "local" || fields[0] == "worktree"}
		s.key, s.value, _ = strings.Cut(fields[2], "\n")
		if fields[0] == "command" {
			continue
		}
		if file, is := strings.CutPrefix(fields[1], "file:"); is {
			s.origin = absolute(r.dir, file)
		}
		all = append(all, s)
	}
	return all, nil
}

// common is the directory that has the settings and hooks of a repository.
func (r *repository) common(ctx context.Context) (string, error) {
	out, err := ask(ctx, r.dir, r.args("rev-parse", "--git-common-dir")...)
	if err != nil {
		return "", err
	}
	return absolute(r.dir, strings.TrimSuffix(string(out), "\n")), nil
}

func absolute(dir, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(dir, name)
}
