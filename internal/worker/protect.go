package worker

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// protected are the places of a lane's workspace that nothing changes. Those of a directory that is
// used in place are looked up once: what commands make afterwards is theirs to change.
func (s *sandboxes) protected(ctx context.Context, l protocol.Lane) (gitguard.Places, error) {
	if s.options.Protect != nil || !s.options.Caps.Protect {
		return gitguard.Only(s.options.Protect), nil
	}
	dir, inPlace := s.inPlace(l)
	if !inPlace {
		return gitguard.Places{}, nil
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
