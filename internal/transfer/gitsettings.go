package transfer

import (
	"context"
	"slices"

	"github.com/toolfleet/toolfleet/internal/gitguard"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// gitSettings are the settings of repositories in a directory: harmless ones that a session sets in
// its copy come back.
type gitSettings struct {
	copies *gitguard.Copies
	places []string
	was    map[string]snapshot.Node // in the base, by path
}

// newGitSettings returns those of some files of a directory.
func newGitSettings(dir string, places []string) *gitSettings {
	return &gitSettings{copies: gitguard.NewCopies(dir, "", places), places: places, was: map[string]snapshot.Node{}}
}

// begin remembers what the base has.
func (g *gitSettings) begin(tree snapshot.Tree) {
	if g == nil {
		return
	}
	for _, place := range g.places {
		g.was[place] = tree[place]
	}
}

// bring applies harmless settings of the copy's tree, and lists the others as protected.
func (g *gitSettings) bring(ctx context.Context, bodies snapshot.Bodies, tree snapshot.Tree, changes *snapshot.Changes, warn func(string)) {
	if g == nil {
		return
	}
	for _, place := range g.places {
		was, is := g.was[place], tree[place]
		if was.Type != protocol.TypeFile || is.Type != protocol.TypeFile || was.Same(is) {
			continue
		}
		rest, err := g.of(ctx, bodies, place, was, is)
		if err != nil {
			warn(err.Error())
			continue
		}
		g.was[place] = is
		changes.Protected = slices.DeleteFunc(changes.Protected, func(name string) bool { return name == place })
		for _, key := range rest {
			changes.Protected = append(changes.Protected, place+": "+key)
		}
	}
	slices.Sort(changes.Protected)
}

// maxGitSettings is the maximum size of a settings file, in bytes.
const maxGitSettings = 1 << 20

func (g *gitSettings) of(ctx context.Context, bodies snapshot.Bodies, place string, was, is snapshot.Node) ([]string, error) {
	old, err := snapshot.LoadBytes(ctx, bodies, was.Parts, maxGitSettings)
	if err != nil {
		return nil, err
	}
	now, err := snapshot.LoadBytes(ctx, bodies, is.Parts, maxGitSettings)
	if err != nil {
		return nil, err
	}
	return g.copies.Bring(ctx, place, old, now)
}
