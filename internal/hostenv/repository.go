package hostenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Repository returns what git needs in a linked worktree that is used in place: the directory that
// it shares with its repository, which commands can read. They write only what a commit needs:
// objects, refs and their logs, and what the worktree has of its own but for what says where its
// settings are. Settings, hooks and other worktrees stay as they are.
func (l Limits) Repository(o *gitguard.Outside) ([]sandbox.Mount, error) {
	if !l.View.Root {
		return nil, errors.New("this driver cannot protect a part of it")
	}
	gitDir := o.Named
	if !filepath.IsAbs(gitDir) { // git looks for it from the place that the workspace has in a sandbox
		gitDir = filepath.Join(guestWorkspace, gitDir)
	}
	common := filepath.Join(gitDir, "..", "..")
	if err := os.Mkdir(filepath.Join(o.Common, "logs"), 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as git makes it
		return nil, err
	}
	settings, err := os.OpenFile(filepath.Join(o.GitDir, "config.worktree"), os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // as git makes it
	if err != nil {
		return nil, err
	}
	if err := settings.Close(); err != nil {
		return nil, err
	}
	mounts := []sandbox.Mount{{Host: o.Common, Guest: common, AsOwner: true}}
	for _, name := range []string{"objects", "refs", "logs"} {
		mounts = append(mounts, sandbox.Mount{Host: filepath.Join(o.Common, name), Guest: filepath.Join(common, name), Write: true, AsOwner: true})
	}
	mounts = append(mounts, sandbox.Mount{Host: o.GitDir, Guest: gitDir, Write: true, AsOwner: true})
	for _, name := range []string{"commondir", "config.worktree", "gitdir", "modules"} {
		if host := filepath.Join(o.GitDir, name); exists(host) {
			mounts = append(mounts, sandbox.Mount{Host: host, Guest: filepath.Join(gitDir, name), AsOwner: true})
		}
	}
	for _, m := range mounts {
		if info, err := os.Lstat(m.Host); err != nil || info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%s is a symbolic link", m.Host)
		}
	}
	return mounts, l.Check(mounts[0])
}
