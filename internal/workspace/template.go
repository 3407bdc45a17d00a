package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Dir is where the files of a workspace are in its trees; the other directories belong to its
// shell and its tools.
const Dir = "workspace"

// isFile reports whether a path of a tree is one of the workspace itself.
func isFile(path string) bool { return path == Dir || strings.HasPrefix(path, Dir+"/") }

var templateName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// CheckTemplate returns an error for what is no name of a template.
func CheckTemplate(name string) error {
	if !templateName.MatchString(name) {
		return fmt.Errorf("%.100q: a template's name is 1 to 63 lower case letters, digits, - and _, and begins with a letter or digit", name)
	}
	return nil
}

// templates begins what stands for a template in the place of a lane: no hash of a lane has a dash.
const templates = "template-"

func templateLane(name string) wire.LaneHash { return wire.LaneHash(templates + name) }

// TemplateOf makes a template of the workspace that a lane has. The errors are those of
// [Store.Fork].
func (s *Store) TemplateOf(ctx context.Context, name string, lane wire.LaneHash) error {
	return s.fork(ctx, lane, "", s.unbegun(templateLane(name)), isFile)
}

// TemplateFrom makes a template of a directory. The error wraps [ErrExists] when there is one of
// that name.
func (s *Store) TemplateFrom(ctx context.Context, name string, dir *os.Root, skip func(string, bool) bool) error {
	delta, err := snapshot.Save(ctx, dir, snapshot.Tree{}, snapshot.Index{}, s, &snapshot.SaveOptions{Skip: skip})
	if err == nil {
		err = delta.Outline(ctx, s)
	}
	if err != nil {
		return err
	}
	tree := snapshot.Tree{Dir: {Type: protocol.TypeDir, Mode: 0o700}}
	for path, node := range delta.Set {
		tree[Dir+"/"+path] = node
	}
	return s.begin(ctx, s.unbegun(templateLane(name)), &snapshot.Delta{Set: tree, Stored: delta.Stored}, "", templateCall)
}

// templateCall stands for the calls that made a directory.
const templateCall = "template"

// FromTemplate begins the workspace of a lane with a template. The errors are those of
// [Store.Fork].
func (s *Store) FromTemplate(ctx context.Context, name string, lane protocol.Lane) error {
	return s.Fork(ctx, templateLane(name), "", lane, isFile)
}

// RemoveTemplate removes a template. Workspaces that began with it stay. The error wraps [ErrNone]
// when there is none.
func (s *Store) RemoveTemplate(ctx context.Context, name string) error {
	there, err := s.Has(ctx, templateLane(name))
	if err == nil && !there {
		err = ErrNone
	}
	if err != nil {
		return err
	}
	return s.Remove(ctx, templateLane(name), 0)
}

// Templates returns all templates, by name. With an error that is about single ones it returns the
// others.
func (s *Store) Templates(ctx context.Context) ([]report.Template, error) {
	names, err := s.journals(ctx, templates)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	list, unreadable := []report.Template{}, []error(nil)
	for _, name := range names {
		last, err := s.last(ctx, templateLane(name))
		if err != nil {
			return nil, err
		}
		if last == nil { // it was removed meanwhile
			continue
		}
		tree, _, _, err := s.fold(ctx, templateLane(name), last)
		if there, look := s.Has(ctx, templateLane(name)); err != nil && look == nil && !there {
			continue // as above
		}
		if err != nil {
			unreadable = append(unreadable, fmt.Errorf("template %s: %w", name, err))
			continue
		}
		t := report.Template{Name: name, Time: last.at}
		for _, node := range tree.Tree {
			if node.Type == protocol.TypeFile {
				t.Files, t.Bytes = t.Files+1, t.Bytes+node.Size
			}
		}
		list = append(list, t)
	}
	return list, errors.Join(unreadable...)
}
