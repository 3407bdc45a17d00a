package sandboxes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// copiesOf are the copies of git's settings of a lane's sandbox, of these files; nil without any.
// They stay as commands have changed them when the sandbox is closed and opened again.
func (s *Set) copiesOf(l protocol.Lane, workspace, scratch string, files []string) *gitguard.Copies {
	if len(files) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings[l] == nil {
		s.settings[l] = gitguard.NewCopies(workspace, scratch, files)
	}
	return s.settings[l]
}

// copySettings has the sandbox see git's settings as they are now.
func (b *Box) copySettings(ctx context.Context) error {
	if err := b.settings.Put(ctx); err != nil {
		return protocol.Errorf(protocol.CodeSandboxUnavailable, "the worker cannot open the sandbox: %v", err)
	}
	return nil
}

// Notes are what a model must know about a command that has ended: which protected paths refused a
// change, and which settings of git hold in this sandbox only. Other settings are copied to the
// workspace.
func (b *Box) Notes(ctx context.Context, cmd *sandbox.Cmd, r *sandbox.Result) (notes []string) {
	b.mu.Lock()
	protect, settings := b.protect, b.settings
	b.mu.Unlock()
	if hint := protectedHint(protect, r); hint != "" {
		notes = append(notes, hint)
	}
	if note := b.noRepository(ctx, r); note != "" {
		notes = append(notes, note)
	}
	if cmd.ReadOnly { // it changes nothing of the workspace
		return notes
	}
	private, err := settings.Take(context.WithoutCancel(ctx))
	if err != nil {
		b.set.options.Logger.WarnContext(ctx, "settings of git are not copied to the workspace", slog.String("lane", string(b.lane)), slog.Any("error", err))
		notes = append(notes, "Settings of git that were changed may hold in this sandbox alone.")
	}
	if len(private) > 0 {
		notes = append(notes, fmt.Sprintf("These settings of git hold in this sandbox alone, and are not in the user's repository: %s. "+
			"If they are wanted there, say so: only the user can set them.", strings.Join(private, ", ")))
	}
	return notes
}

// noRepository says why git found no repository where a person's git finds one; "" if the command
// does not report that.
func (b *Box) noRepository(ctx context.Context, r *sandbox.Result) string {
	const said = "fatal: not a git repository"
	if !bytes.Contains(r.Stderr.Data, []byte(said)) && !bytes.Contains(r.Stdout.Data, []byte(said)) {
		return ""
	}
	workspace := b.Workspace()
	link, err := os.Lstat(filepath.Join(workspace, ".git"))
	if err != nil || !link.Mode().IsRegular() {
		if _, inPlace := b.set.InPlace(b.lane); !inPlace || gitguard.FindOutside(ctx, workspace) == nil {
			return ""
		}
	}
	return "git does not work in this workspace: it is a linked worktree, a submodule or a subdirectory of a repository that the sandbox does not have. Go on without git, and say so if it is needed."
}

// refusals are what the kernel says of changing a protected path.
var refusals = []string{"Read-only file system", "Device or resource busy", "Invalid cross-device link", "EROFS", "EBUSY", "EXDEV"} //nolint:gochecknoglobals // a constant

// protectedHint names the protected paths that a command reports it could not change; "" for none.
func protectedHint(paths []string, r *sandbox.Result) string {
	said := string(r.Stderr.Data) + string(r.Stdout.Data)
	var named []string
	for line := range strings.Lines(said) {
		for _, refusal := range refusals {
			if !strings.Contains(line, refusal) {
				continue
			}
			for _, path := range paths {
				if strings.Contains(line, path) {
					named = append(named, path)
				}
			}
		}
	}
	if len(named) == 0 {
		return ""
	}
	slices.Sort(named)
	return strings.Join(slices.Compact(named), ", ") + ": protected, can be read and not changed, moved or removed in this workspace, because programs of the user run what is there. Leave it as it is."
}

// protected are the paths of a lane's workspace that nothing changes. Those of a directory that is
// used in place are looked up once: what commands make afterwards they may change.
func (s *Set) protected(ctx context.Context, l protocol.Lane) (gitguard.Protection, error) {
	if s.options.Protect != nil || !s.options.Caps.Protect {
		return gitguard.Only(s.options.Protect), nil
	}
	dir, inPlace := s.InPlace(l)
	if !inPlace {
		return gitguard.Protection{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	protection, known := s.protect[dir]
	if known {
		return protection, nil
	}
	protection, err := gitguard.Protected(ctx, dir)
	if err == nil {
		s.protect[dir] = protection
	}
	return protection, err
}
