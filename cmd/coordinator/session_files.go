package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

type sessionFiles struct {
	ID   string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	Path string `arg:"" optional:"" help:"File of the workspace to print. Default: list the files."`
	At   string `placeholder:"CALL" help:"Call after which the state is taken. Default: the current state."`
}

type sessionDiff struct {
	ID   string `arg:"" help:"Id of the session, the beginning of its id, or last."`
	Call string `arg:"" optional:"" help:"Id of the call whose changes are shown, or of another session, such as a fork, to compare with. Default: list the calls that changed something."`
}

// maxShown is the most of one file that is printed or compared.
const maxShown = 64 << 20

// checkpoints opens the workspaces of the fleet that the flags name.
func (c *sessionCommand) checkpoints(ctx context.Context, p program, desk sessionDesk) (*workspace.Store, func(), error) {
	if c.Nats == "" {
		return nil, nil, cli.Usagef("--nats is missing: only a fleet stores what each call changed. Of a session of this machine, session show %s names the directory, and session log %s shows its calls", desk.id, desk.id)
	}
	f, err := c.connect(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	store, err := workspace.Open(ctx, f.Conn(desk.pool), desk.fleet)
	if err != nil {
		f.Close()
	}
	return store, f.Close, err
}

func (d sessionDesk) lane() wire.LaneHash {
	return wire.HashLane(protocol.SandboxKey(string(d.id)).Lane())
}

// underWorkspace is where the files of a workspace are in its checkpoints.
const underWorkspace = workspace.Dir + "/"

// files lists the files of a workspace, or prints one.
func (c *sessionCommand) files(ctx context.Context, p program, desk sessionDesk) error {
	store, done, err := c.checkpoints(ctx, p, desk)
	if err != nil {
		return err
	}
	defer done()
	_, tree, err := store.Change(ctx, desk.lane(), protocol.CallID(c.Files.At))
	if err != nil {
		return fmt.Errorf("session %s: %w", desk.id, err)
	}
	if c.Files.Path != "" {
		return printFile(ctx, p, store, tree, c.Files.Path)
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(tree)), func(name string) bool { return !strings.HasPrefix(name, underWorkspace) })
	if c.JSON {
		listed := []listedFile{}
		for _, name := range names {
			node := tree[name]
			listed = append(listed, listedFile{strings.TrimPrefix(name, underWorkspace), string(node.Type), fmt.Sprintf("%04o", node.Mode), node.Size, node.Target})
		}
		return printJSON(p, listed)
	}
	for _, name := range names {
		node := tree[name]
		mode, shown := node.Mode, oneLine(strings.TrimPrefix(name, underWorkspace))
		switch node.Type {
		case protocol.TypeDir:
			mode |= fs.ModeDir
		case protocol.TypeSymlink:
			mode |= fs.ModeSymlink
			shown += " -> " + oneLine(node.Target)
		default:
		}
		if _, err := fmt.Fprintf(p.Stdout, "%s %10d  %s\n", mode, node.Size, shown); err != nil {
			return err
		}
	}
	return nil
}

// oneLine is a name as a list shows it: line breaks in it begin no other entry.
func oneLine(name string) string {
	return terminal.Visible(strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(name))
}

// listedFile is a file as --json prints it.
type listedFile struct {
	Path   string `json:"path"`
	Type   string `json:"type"`
	Mode   string `json:"mode"`
	Size   int64  `json:"size"`
	Target string `json:"target,omitempty"`
}

func printFile(ctx context.Context, p program, store *workspace.Store, tree snapshot.Tree, name string) error {
	node, is := tree[underWorkspace+name]
	if !is || node.Type != protocol.TypeFile {
		return fmt.Errorf("PATH %q: no file of the workspace", name)
	}
	content, err := snapshot.LoadBytes(ctx, store, node.Parts, maxShown)
	if err != nil {
		return fmt.Errorf("PATH %q: %w", name, err)
	}
	_, err = p.out().Write(content)
	return err
}

// diff shows what a call changed, or lists the calls that changed something.
func (c *sessionCommand) diff(ctx context.Context, p program, desk sessionDesk) error {
	store, done, err := c.checkpoints(ctx, p, desk)
	if err != nil {
		return err
	}
	defer done()
	if c.Diff.Call == "" {
		return c.calls(ctx, p, desk, store)
	}
	before, after, err := store.Change(ctx, desk.lane(), protocol.CallID(c.Diff.Call))
	if errors.Is(err, workspace.ErrNone) {
		before, after, err = c.two(ctx, p, desk, store, err)
	}
	if err != nil {
		return fmt.Errorf("session %s: %w", desk.id, err)
	}
	text, err := changed(ctx, store, before, after)
	if err != nil {
		return fmt.Errorf("session %s: %w", desk.id, err)
	}
	if c.JSON {
		return printJSON(p, map[string]string{"call": c.Diff.Call, "diff": text})
	}
	_, err = io.WriteString(p.out(), text)
	return err
}

// two are the workspaces of the session and of another one, whose id stands where that of a call
// may stand; none is the error when there is no such session.
func (c *sessionCommand) two(ctx context.Context, p program, desk sessionDesk, store *workspace.Store, none error) (one, other snapshot.Tree, err error) {
	second := desk
	if second.id, err = protocol.ParseSessionID(c.Diff.Call); err == nil {
		second.id, err = c.resolve(ctx, p, second)
	}
	if err != nil {
		return nil, nil, errors.Join(none, err)
	}
	if there, err := store.Has(ctx, second.lane()); err != nil || !there {
		return nil, nil, errors.Join(none, err)
	}
	if one, err = store.At(ctx, desk.lane(), ""); err == nil {
		other, err = store.At(ctx, second.lane(), "")
	}
	return one, other, err
}

func (c *sessionCommand) calls(ctx context.Context, p program, desk sessionDesk, store *workspace.Store) error {
	history, err := store.History(ctx, desk.lane())
	if err != nil {
		return fmt.Errorf("session %s: %w", desk.id, err)
	}
	if len(history) == 0 {
		return fmt.Errorf("session %s has no workspace in fleet %s: %w", desk.id, desk.fleet, workspace.ErrNone)
	}
	if c.JSON {
		return printJSON(p, history)
	}
	events, err := c.history(ctx, p, desk) // a workspace without a session's journal has no names of tools
	if err != nil && !errors.Is(err, session.ErrNone) {
		return err
	}
	tools := map[protocol.CallID]string{}
	for _, e := range events.Events {
		if e.Type == loop.EventToolCall {
			tools[e.CallID] = e.Name
		}
	}
	for _, at := range history {
		what := "everything"
		if at.Set+at.Removed > 0 {
			what = fmt.Sprintf("%d set, %d removed: %s", at.Set, at.Removed, named(at.Paths))
		}
		for _, call := range at.Calls {
			if _, err := fmt.Fprintf(p.out(), "%s  %s  %s  %s\n", call, at.Time.Local().Format(time.DateTime), orDash(printableName(tools[call])), what); err != nil {
				return err
			}
		}
	}
	return nil
}

// named are the first paths of a workspace, as people know them.
func named(paths []string) string {
	var shown []string
	for _, path := range paths {
		if name, in := strings.CutPrefix(path, underWorkspace); in {
			shown = append(shown, printableName(name))
		}
	}
	if len(shown) > maxNamed {
		shown = append(shown[:maxNamed], "...")
	}
	return strings.Join(shown, ", ")
}

// changed is the difference of two trees: a line for each path, and what changed of texts.
func changed(ctx context.Context, store *workspace.Store, before, after snapshot.Tree) (string, error) {
	var text strings.Builder
	all := maps.Clone(before)
	maps.Copy(all, after)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		shown, in := strings.CutPrefix(name, underWorkspace)
		if was, is := before[name], after[name]; !in || was.Same(is) {
			continue
		}
		one, err := difference(ctx, store, shown, before[name], after[name])
		if err != nil {
			return "", err
		}
		text.WriteString(one)
	}
	return text.String(), nil
}

func difference(ctx context.Context, store *workspace.Store, name string, was, is snapshot.Node) (string, error) {
	word := "changed"
	switch {
	case was.Type == "":
		word = "new"
	case is.Type == "":
		word = "removed"
	}
	head := fmt.Sprintf("%s %s %s\n", word, cmp.Or(is.Type, was.Type), name)
	old, err := textOf(ctx, store, was)
	if err != nil {
		return "", err
	}
	now, err := textOf(ctx, store, is)
	if err != nil || old == now {
		return head, err
	}
	return head + udiff.Unified("a/"+name, "b/"+name, old, now), nil
}

// textOf is the content of a small text file; "" of anything else.
func textOf(ctx context.Context, store *workspace.Store, node snapshot.Node) (string, error) {
	if node.Type != protocol.TypeFile || node.Size > 1<<20 {
		return "", nil
	}
	content, err := snapshot.LoadBytes(ctx, store, node.Parts, maxShown)
	if err != nil || !utf8.Valid(content) || strings.ContainsRune(string(content), 0) {
		return "", err
	}
	return string(content), nil
}
