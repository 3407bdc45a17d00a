package worker

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

// copiesOf are the copies of git's settings of a lane's sandbox, in these places; nil without any.
// What commands have set there stays when the sandbox is closed and opened again.
func (s *sandboxes) copiesOf(l protocol.Lane, workspace, scratch string, places []string) *gitguard.Copies {
	if len(places) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings[l] == nil {
		s.settings[l] = gitguard.NewCopies(workspace, scratch, places)
	}
	return s.settings[l]
}

// copySettings has the sandbox see git's settings as they are now.
func (b *box) copySettings(ctx context.Context) error {
	if err := b.settings.Put(ctx); err != nil {
		return protocol.Errorf(protocol.CodeSandboxUnavailable, "the worker cannot open the sandbox: %v", err)
	}
	return nil
}

// notes are what there is to say of a command in a sandbox with protected places: which it ran
// into, and which of git's settings it has made that nobody else gets. The others are taken over.
func (s *sandboxes) notes(ctx context.Context, l protocol.Lane, cmd *sandbox.Cmd, r *sandbox.Result) (notes []string) {
	b := s.box(l)
	b.mu.Lock()
	protect, settings := b.protect, b.settings
	b.mu.Unlock()
	if hint := protectedHint(protect, r); hint != "" {
		notes = append(notes, hint)
	}
	if note := s.noRepository(ctx, l, r); note != "" {
		notes = append(notes, note)
	}
	if cmd.ReadOnly { // it changes nothing of the workspace
		return notes
	}
	kept, err := settings.Take(context.WithoutCancel(ctx))
	if err != nil {
		s.options.Logger.WarnContext(ctx, "settings of git are not taken over", slog.String("lane", string(l)), slog.Any("error", err))
		notes = append(notes, "Settings of git that were changed may hold in this sandbox alone.")
	}
	if len(kept) > 0 {
		notes = append(notes, fmt.Sprintf("These settings of git hold in this sandbox alone, and are not in the user's repository: %s. "+
			"If they are wanted there, say so: only the user can set them.", strings.Join(kept, ", ")))
	}
	return notes
}

// noRepository says why a command found no repository where a person's git finds one; "" where it
// does not say so.
func (s *sandboxes) noRepository(ctx context.Context, l protocol.Lane, r *sandbox.Result) string {
	const said = "fatal: not a git repository"
	if !bytes.Contains(r.Stderr.Data, []byte(said)) && !bytes.Contains(r.Stdout.Data, []byte(said)) {
		return ""
	}
	workspace := s.workspace(l)
	link, err := os.Lstat(filepath.Join(workspace, ".git"))
	if err != nil || !link.Mode().IsRegular() {
		if _, inPlace := s.inPlace(l); !inPlace || gitguard.FindOutside(ctx, workspace) == nil {
			return ""
		}
	}
	return "git does not work in this workspace: it is a linked worktree, a submodule or a subdirectory of a repository that the sandbox does not have. Go on without git, and say so if it is needed."
}

// refusals are what the kernel says of changing a protected place.
var refusals = []string{"Read-only file system", "Device or resource busy", "Invalid cross-device link", "EROFS", "EBUSY", "EXDEV"} //nolint:gochecknoglobals // a constant

// protectedHint names the protected places of which a command says that it could not change them;
// "" when it says so of none.
func protectedHint(places []string, r *sandbox.Result) string {
	said := string(r.Stderr.Data) + string(r.Stdout.Data)
	var named []string
	for line := range strings.Lines(said) {
		for _, refusal := range refusals {
			if !strings.Contains(line, refusal) {
				continue
			}
			for _, place := range places {
				if strings.Contains(line, place) {
					named = append(named, place)
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

// protected are the places of a lane's workspace that nothing changes. Those of a directory that is
// used in place are looked up once: what commands make afterwards is theirs to change.
func (s *sandboxes) protected(ctx context.Context, l protocol.Lane) (gitguard.Protection, error) {
	if s.options.Protect != nil || !s.options.Caps.Protect {
		return gitguard.Only(s.options.Protect), nil
	}
	dir, inPlace := s.inPlace(l)
	if !inPlace {
		return gitguard.Protection{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	places, known := s.protect[dir]
	if known {
		return places, nil
	}
	places, err := gitguard.Protected(ctx, dir)
	if err == nil {
		s.protect[dir] = places
	}
	return places, err
}

// used reports whether there is anything in a workspace but the empty directories that keep
// protected places from being made.
func (s *sandboxes) used(workspace string) (bool, error) {
	entries, err := os.ReadDir(workspace)
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if !slices.ContainsFunc(s.options.Protect, func(place string) bool { return place == name || strings.HasPrefix(place, name+"/") }) {
			return true, nil
		}
		below, err := os.ReadDir(filepath.Join(workspace, name))
		if err != nil || len(below) > 0 {
			return true, nil //nolint:nilerr // it is a file
		}
	}
	return false, nil
}
