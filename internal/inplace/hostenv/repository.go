package hostenv

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/inplace/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Repository returns what git needs in a linked worktree or a submodule that is used in place.
// In the part that a worktree shares with its repository, commands can write only what a commit
// needs: objects, refs and their logs. In the worktree's own part they can write all but what is
// reserved. Settings, hooks and other worktrees stay as they are. The caller calls free when no
// sandbox has the mounts any more.
func (l Limits) Repository(ctx context.Context, o *gitguard.Outside) (mounts []isolation.Mount, free func() error, err error) {
	if !l.View.Root {
		return nil, nil, errors.New("this driver cannot protect a part of it")
	}
	gitDir := o.Named
	if !filepath.IsAbs(gitDir) { // git looks for it from the place that the workspace has in a sandbox
		gitDir = filepath.Join(guestWorkspace, gitDir)
	}
	places, free, err := o.Reserve(ctx)
	if err != nil {
		return nil, nil, err
	}
	if o.Common != o.GitDir {
		common := filepath.Join(gitDir, "..", "..")
		mounts = append(mounts, isolation.Mount{Host: o.Common, Guest: common, AsOwner: true})
		for _, name := range []string{"objects", "refs", "logs"} {
			mounts = append(mounts, isolation.Mount{Host: filepath.Join(o.Common, name), Guest: filepath.Join(common, name), Write: true, AsOwner: true})
		}
	}
	mounts = append(mounts, isolation.Mount{Host: o.GitDir, Guest: gitDir, Write: true, AsOwner: true})
	for _, name := range places {
		mounts = append(mounts, isolation.Mount{Host: filepath.Join(o.GitDir, name), Guest: filepath.Join(gitDir, name), AsOwner: true})
	}
	if err := l.checkRepository(mounts); err != nil {
		return nil, nil, errors.Join(err, free())
	}
	return mounts, free, nil
}

func (l Limits) checkRepository(mounts []isolation.Mount) error {
	for _, m := range mounts {
		info, err := os.Lstat(m.Host)
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link", m.Host)
		}
	}
	return l.Check(mounts[0])
}

// identityTime bounds the queries to git, and maxIdentity a name.
const (
	identityTime = 5 * time.Second
	maxIdentity  = 256
)

// Identity is who commits: the user's name and address, as git has them in a directory, and nothing
// else of its settings. They are "" where git has none, or is none.
func Identity(ctx context.Context, dir string) (name, email string) {
	ctx, cancel := context.WithTimeout(ctx, identityTime)
	defer cancel()
	name, email = gitguard.Identity(ctx, dir)
	return fit(name), fit(email)
}

// fit is a value of git's settings that is fit for a commit; "" when it is not.
func fit(value string) string {
	value = strings.TrimSpace(value)
	if len(value) > maxIdentity || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) || strings.ContainsAny(value, "<>") {
		return ""
	}
	return value
}
